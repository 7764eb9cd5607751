// base/no_memory.hpp - what a thread does where memory ends: it drops what it served, and goes on.
//
// No exception ends a thread of the library, which would end the process.
// Threads: any thread.
#pragma once

#include <chrono>
#include <exception>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan::base {

/// The pause before a loop tries again what it had no memory for.
inline constexpr Duration kWithoutMemory = std::chrono::milliseconds(100);

/// Returns the Status of what there is no memory for, and allocates nothing.
const Status& no_memory(Scope scope = Scope::request) noexcept;

/// Returns what `run` returns, or no_memory() where that throws.
template <class Run>
Status or_no_memory(const Run& run) noexcept {
  try {
    return run();
  } catch (const std::exception&) {
    return no_memory();
  }
}

}  // namespace linkspan::base
