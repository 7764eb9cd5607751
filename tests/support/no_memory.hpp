// tests/support/no_memory.hpp - operator new throws in the threads of one name.
//
// Threads: one NoMemory at a time; any thread.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <new>
#include <thread>

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

/// Calls `use` on a thread in which the first allocation fails, then the second and so on, until
/// none fails. Calls `check` after each, with true if `use` has thrown bad_alloc.
template <class Use, class Check>
void fail_each_allocation(const Use& use, const Check& check) {
  unsigned nth = 0;
  bool failed = true;
  while (failed) {
    ++nth;
    bool threw = false;
    std::jthread([&] {
      ::pthread_setname_np(::pthread_self(), "ls-test");
      const NoMemory none("ls-test", nth);
      try {
        use();
      } catch (const std::bad_alloc&) {
        threw = true;
      }
      failed = NoMemory::failed() != 0;
    }).join();
    check(threw);
  }
}

}  // namespace linkspan::test
