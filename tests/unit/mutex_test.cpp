#include "base/mutex.hpp"

#include <gtest/gtest.h>

#include <future>

namespace linkspan::base {

using namespace std::chrono_literals;

TEST(Condition, Sleeps_WhenTheDeadlineIsTheLongest) {
  Mutex mutex;
  Condition changed;
  int wakes = 0;
  bool ended = false;
  auto waits = std::async(std::launch::async, [&] {
    const Deadline longest = Deadline::in(Duration::max());
    const MutexLock lock(mutex);
    while (!ended) {
      changed.wait(mutex, longest);
      ++wakes;
    }
  });
  EXPECT_EQ(waits.wait_for(50ms), std::future_status::timeout);
  {
    const MutexLock lock(mutex);
    ended = true;
    changed.notify_all();
  }
  waits.get();
  EXPECT_LT(wakes, 10) << "a busy loop";
}

}  // namespace linkspan::base
