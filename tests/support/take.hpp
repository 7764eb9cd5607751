// tests/support/take.hpp - the value of a Result where a test cannot go on without it.
//
// Threads: any thread.
#pragma once

#include <chrono>
#include <stdexcept>
#include <utility>

#include "linkspan/status.hpp"

namespace linkspan::test {

using namespace std::chrono_literals;  // NOLINT(google-global-names-in-headers)

/// Returns the value, or fails the test: gtest reports the exception.
template <class T>
T take(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().to_string());
  return *std::move(result);
}
inline void must(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.to_string());
}

}  // namespace linkspan::test
