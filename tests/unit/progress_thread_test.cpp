// Tests a ProgressThread: when it polls, what ends its waits, and its own end.
#include "engine/progress/progress_thread.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <new>

#include "base/mutex.hpp"
#include "tests/support/take.hpp"

namespace linkspan::engine {
namespace progress_thread_test {

using namespace std::chrono_literals;
using test::must, test::take;
using When = transport::PollHint::When;

class ProgressThreadTest : public ::testing::Test {
 protected:
  ~ProgressThreadTest() override { thread_->end(); }

  /// Starts the thread, whose polls return the hint of the test.
  void start() {
    must(thread_->start([this] {
      const base::MutexLock lock(mutex_);
      ++polls_;
      polled_.notify_all();
      if (polls_ == 1 && at_first_poll_) at_first_poll_();
      if (throws_) throw std::bad_alloc();
      return hint_;
    }));
  }
  void set_hint(const transport::PollHint& hint) {
    const base::MutexLock lock(mutex_);
    hint_ = hint;
  }
  void set_throws(bool throws) {
    const base::MutexLock lock(mutex_);
    throws_ = throws;
  }
  std::uint64_t polls() {
    const base::MutexLock lock(mutex_);
    return polls_;
  }
  /// Waits until there were more than `seen` polls. Returns false after `time`.
  bool wait_for_poll_after(std::uint64_t seen, Duration time) {
    const auto limit = base::Deadline::in(time);
    const base::MutexLock lock(mutex_);
    while (polls_ <= seen && !limit.passed()) polled_.wait(mutex_, limit);
    return polls_ > seen;
  }
  /// Waits until the thread has nothing to do and waits for long: 20 ms without a poll.
  void wait_until_it_sleeps() {
    const auto limit = base::Deadline::in(10s);
    while (wait_for_poll_after(polls(), 20ms) && !limit.passed()) {
    }
    ASSERT_FALSE(limit.passed());
  }

  std::function<void()> at_first_poll_;  // set before start()
  base::Mutex mutex_;
  base::Condition polled_;
  transport::PollHint hint_ LINKSPAN_GUARDED_BY(mutex_);
  bool throws_ LINKSPAN_GUARDED_BY(mutex_) = false;
  std::uint64_t polls_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<ProgressThread> thread_ = take(ProgressThread::create());
};

TEST_F(ProgressThreadTest, PollsUntilItEnds) {
  start();
  EXPECT_TRUE(wait_for_poll_after(0, 10s));
  thread_->end();
  const std::uint64_t last = polls();
  thread_->wake();
  EXPECT_FALSE(wait_for_poll_after(last, 1ms));
  thread_->end();
}

TEST_F(ProgressThreadTest, EndsWithoutAStart) {
  thread_->wake();
  thread_->expect();
  thread_->end();
  EXPECT_EQ(polls(), 0u);
}

TEST_F(ProgressThreadTest, EndsAtOnce_WhileItWaitsForLong) {
  start();
  wait_until_it_sleeps();
  const auto limit = base::Deadline::in(700ms);  // of a wait of 1 s
  thread_->end();
  EXPECT_FALSE(limit.passed());
}

TEST_F(ProgressThreadTest, PollsAtOnce_WhenALongWaitIsEnded) {
  start();
  for (const auto notify : {&ProgressThread::wake, &ProgressThread::expect}) {
    wait_until_it_sleeps();
    const std::uint64_t before = polls();
    ((*thread_).*notify)();
    EXPECT_TRUE(wait_for_poll_after(before, 700ms)) << "a long wait takes 1 s";
  }
}

TEST_F(ProgressThreadTest, PollsAgain_WhileThereIsWork) {
  set_hint({.when = When::now, .at = {}});
  start();
  for (std::uint64_t seen = 0; seen < 1000; ++seen) ASSERT_TRUE(wait_for_poll_after(seen, 10s));
}

TEST_F(ProgressThreadTest, PollsAtThePredictedTime_ThoughNothingWakesIt) {
  const base::Time at = base::Clock::steady().now() + 100ms;
  set_hint({.when = When::at, .at = at});
  start();
  ASSERT_TRUE(wait_for_poll_after(0, 10s));
  std::uint64_t seen = polls();
  EXPECT_LT(seen, 50u) << "it does not spin until then";
  while (base::Clock::steady().now() < at)
    wait_for_poll_after(seen, at - base::Clock::steady().now());
  seen = polls();
  EXPECT_TRUE(wait_for_poll_after(seen, 700ms));
}

TEST_F(ProgressThreadTest, PollsAgain_WhenAPollHadNoMemory) {
  set_throws(true);
  start();
  EXPECT_TRUE(wait_for_poll_after(0, 10s));
  set_throws(false);
  EXPECT_TRUE(wait_for_poll_after(polls(), 700ms))
      << "nothing wakes it, and the work is still there";
}

/// The first wait is a long one, and no wake-up was written for it.
TEST_F(ProgressThreadTest, PollsAgainAtOnce_WhenItWasWokenWhileItPolled) {
  at_first_poll_ = [this] { thread_->wake(); };
  start();
  EXPECT_TRUE(wait_for_poll_after(1, 700ms));
}

TEST_F(ProgressThreadTest, LosesNoWakeUp_OfMany) {
  start();
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t before = polls();
    thread_->wake();
    ASSERT_TRUE(wait_for_poll_after(before, 700ms)) << i;
  }
}

}  // namespace progress_thread_test
}  // namespace linkspan::engine
