// tests/support/hidden_function.hpp - finds the function of libc that a preloaded library hides.
//
// Threads: any thread.
#pragma once

#include <dlfcn.h>

#include <atomic>

namespace linkspan::test {

/// Returns the function of that name that the calling library hides. dlsym takes locks and may read
/// the clock, so each is looked up once, into `found`.
template <class Function>
[[gnu::visibility("hidden")]] Function* hidden(std::atomic<void*>& found, const char* name) {
  void* at = found.load(std::memory_order_acquire);
  if (at == nullptr) {
    at = ::dlsym(RTLD_NEXT, name);
    found.store(at, std::memory_order_release);
  }
  return reinterpret_cast<Function*>(at);
}

}  // namespace linkspan::test
