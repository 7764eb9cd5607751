// tests/support/no_memory.hpp - operator new throws in the threads of one name.
//
// Threads: one NoMemory at a time; any thread.
#pragma once

#include <cstddef>

namespace linkspan::test {

/// While it exists, each `every`-th allocation of threads with that name fails.
class NoMemory {
 public:
  explicit NoMemory(const char* thread, unsigned every = 1);
  NoMemory(const NoMemory&) = delete;
  NoMemory& operator=(const NoMemory&) = delete;
  ~NoMemory();

  static std::size_t failed() noexcept;  ///< Allocations, since the last one began.
};

}  // namespace linkspan::test
