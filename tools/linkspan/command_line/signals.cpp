#include "tools/linkspan/command_line/signals.hpp"

#include <algorithm>

#include "base/clock.hpp"

namespace linkspan::tool {

sigset_t block_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

bool wait_for(const sigset_t& set, Duration time) {
  const auto deadline = base::Deadline::in(time);
  for (;;) {
    const Duration left = std::min<Duration>(deadline.left(), std::chrono::hours(1));
    const timespec limit{.tv_sec = left.count() / 1'000'000'000,
                         .tv_nsec = left.count() % 1'000'000'000};
    if (::sigtimedwait(&set, nullptr, &limit) > 0) return true;
    if (deadline.passed()) return false;
  }
}

}  // namespace linkspan::tool
