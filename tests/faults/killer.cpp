#include "tests/faults/killer.hpp"

#include <signal.h>

#include "tests/support/take.hpp"

namespace linkspan::test {

Killer::~Killer() {
  thread_.request_stop();
  const base::MutexLock lock(mutex_);
  changed_.notify_all();
}

void Killer::kill(pid_t victim, base::Time when, Strike& strike) {
  const base::MutexLock lock(mutex_);
  orders_.emplace(when, Order{victim, &strike});
  changed_.notify_all();
}

void Killer::run(const std::stop_token& stop) {
  const base::Clock& clock = base::Clock::steady();
  const base::MutexLock lock(mutex_);
  while (!stop.stop_requested()) {
    Duration nap = 1s;
    while (!orders_.empty()) {
      const auto next = orders_.begin();
      const base::Time now = clock.now();
      nap = next->first - now;
      if (nap > Duration::zero()) break;
      next->second.strike->at_.store(now, std::memory_order_release);
      ::kill(next->second.victim, SIGKILL);
      orders_.erase(next);
      nap = 1s;
    }
    changed_.wait(mutex_, base::Deadline::after(clock, std::min<Duration>(nap, 1s)));
  }
}

}  // namespace linkspan::test
