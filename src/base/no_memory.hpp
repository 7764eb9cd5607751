// base/no_memory.hpp - what a thread does when memory is exhausted: it drops the operation and goes
// on.
//
// No exception may end a thread of the library, because that would end the process.
// Threads: any thread.
#pragma once

#include <chrono>
#include <exception>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan::base {

/// The pause before a loop retries an operation that had no memory.
inline constexpr Duration kWithoutMemory = std::chrono::milliseconds(100);

/// Returns the Status of an operation without memory. Allocates nothing.
const Status& no_memory(Scope scope = Scope::request) noexcept;

/// Returns what `run` returns, a Status or a Result, or no_memory() where that throws.
template <class Run>
auto or_no_memory(const Run& run) noexcept -> decltype(run()) {
  try {
    return run();
  } catch (const std::exception&) {
    return no_memory();
  }
}

}  // namespace linkspan::base
