// tests/faults/killer.hpp - ends processes by SIGKILL at moments chosen in advance.
//
// One thread serves all victims, so each is killed while it waits, copies or looks up.
// Threads: any thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <map>
#include <thread>

#include "base/clock.hpp"
#include "base/mutex.hpp"

namespace linkspan::test {

/// The fate of one victim. `at` is set just before the signal is sent.
class Strike {
 public:
  bool came() const noexcept { return at_.load(std::memory_order_acquire) != base::Time(); }
  base::Time at() const noexcept { return at_.load(std::memory_order_acquire); }

 private:
  friend class Killer;
  std::atomic<base::Time> at_{};
};

class Killer {
 public:
  Killer() : thread_([this](const std::stop_token& stop) { run(stop); }) {}
  Killer(const Killer&) = delete;
  Killer& operator=(const Killer&) = delete;
  ~Killer();

  /// Kills the process at `when`. `strike` must exist, and the process must not be reaped, until
  /// the process has ended.
  void kill(pid_t victim, base::Time when, Strike& strike) LINKSPAN_EXCLUDES(mutex_);

 private:
  struct Order {
    pid_t victim;
    Strike* strike;
  };
  void run(const std::stop_token& stop) LINKSPAN_EXCLUDES(mutex_);

  base::Mutex mutex_;
  base::Condition changed_;
  std::multimap<base::Time, Order> orders_ LINKSPAN_GUARDED_BY(mutex_);
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace linkspan::test
