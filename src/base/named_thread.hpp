// base/named_thread.hpp - starts each thread of the library, with a name that `ps -L`, `top -H` and
// debuggers show. docs/threading.md lists them by it.
//
// Threads: any thread.
#pragma once

#include <cstddef>
#include <stop_token>
#include <thread>
#include <type_traits>
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

/// Starts a thread that calls `run`, with a stop_token if it takes one. It has its name before it
/// does anything else. Throws as std::jthread's constructor does, where there is no memory or no
/// thread.
template <ThreadName kName, class Run>
std::jthread named_thread(Run run) {
  return std::jthread([run = std::move(run)](std::stop_token stop) mutable {
#if !defined(_WIN32)
    ::pthread_setname_np(::pthread_self(), kName.text);
#endif
    if constexpr (std::is_invocable_v<Run&, std::stop_token>)
      run(std::move(stop));
    else
      run();
  });
}

}  // namespace linkspan::base
