// base/named_thread.hpp - starts each thread of the library, with a name that `ps -L`, `top -H` and
// debuggers show. docs/threading.md lists them by it.
//
// Threads: any thread.
#pragma once

#include <thread>
#include <utility>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace linkspan::base {

/// "ls-" and what it is; Linux takes 15 characters.
template <std::size_t kSize>
struct ThreadName {
  static_assert(kSize <= 16, "15 characters and a zero");
  consteval ThreadName(const char (&name)[kSize]) {  // NOLINT(google-explicit-constructor)
    for (std::size_t i = 0; i < kSize; ++i) text[i] = name[i];
  }
  char text[kSize]{};
};

/// Starts a thread that calls `run`, with a stop_token if it takes one. It has its name when this
/// returns. Throws as std::jthread's constructor does, where there is no memory or no thread.
template <ThreadName kName, class Run>
std::jthread named_thread(Run&& run) {
  std::jthread thread(std::forward<Run>(run));
#if !defined(_WIN32)
  ::pthread_setname_np(thread.native_handle(), kName.text);
#endif
  return thread;
}

}  // namespace linkspan::base
