#include "base/executor.hpp"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/mutex.hpp"

namespace linkspan::base::executor_test {

using namespace std::chrono_literals;

constexpr auto kStart = kThreadNamed<"ls-test">;

Deadline within(Duration wait) { return Deadline::after(Clock::steady(), wait); }

/// Something that tasks wait for.
class Door {
 public:
  void open() {
    const MutexLock lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  bool wait() {
    const MutexLock lock(mutex_);
    for (const Deadline limit = within(10s); !open_ && !limit.passed();)
      changed_.wait(mutex_, limit);
    return open_;
  }

 private:
  Mutex mutex_;
  Condition changed_;
  bool open_ LINKSPAN_GUARDED_BY(mutex_) = false;
};

TEST(Executor, RunsTasksInOrderOnANamedThreadThatBlocksSignals) {
  std::vector<int> order;
  std::string name(16, '\0');
  bool blocked = false;
  {
    Executor executor(kStart);
    EXPECT_FALSE(executor.is_own_thread());
    for (int i = 0; i < 100; ++i) executor.run([&order, i] { order.push_back(i); });
    executor.run([&] {
      ::pthread_getname_np(::pthread_self(), name.data(), name.size());
      sigset_t now;
      ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
      blocked = ::sigismember(&now, SIGUSR1) == 1;
      EXPECT_TRUE(executor.is_own_thread());
    });
  }
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::ranges::is_sorted(order));
  EXPECT_EQ(std::string(name.c_str()), "ls-test");
  EXPECT_TRUE(blocked);
}

TEST(Executor, RunsWhatTasksBring_WhileItEnds) {
  int ran = 0;
  {
    Executor executor(kStart);
    executor.run([&] { executor.run([&] { executor.run([&] { ++ran; }); }); });
  }
  EXPECT_EQ(ran, 1);
}

TEST(Executor, RunsATaskInItsCaller_OnceItHasEnded) {
  Executor executor(kStart);
  executor.end();
  const auto here = ::pthread_self();
  bool same = false;
  executor.run([&] { same = ::pthread_equal(here, ::pthread_self()) != 0; });
  EXPECT_TRUE(same);
  Executor::Task kept = [] {};
  EXPECT_FALSE(executor.try_run(kept));
  EXPECT_TRUE(kept != nullptr);
}

TEST(Executor, GoesOnBehindATaskThatThrows) {
  bool ran = false;
  {
    Executor executor(kStart);
    executor.run([] { throw std::bad_alloc(); });
    executor.run([&] { ran = true; });
  }
  EXPECT_TRUE(ran);
}

TEST(Executor, RunsTasksOfOneStrandOneAtATime_AndOthersBesideThem) {
  Executor executor(kStart, 3);
  const auto strand = std::make_shared<Executor::Strand>();
  Door door;
  std::atomic<int> inside{0}, most{0};
  for (int i = 0; i < 4; ++i) {
    Executor::Task task = [&] {
      most = std::max(most.load(), ++inside);
      EXPECT_TRUE(door.wait());
      --inside;
    };
    ASSERT_TRUE(executor.try_run(task, strand));
  }
  executor.run([&] { door.open(); });  // the Strand's tasks do not keep it from a thread
  EXPECT_TRUE(executor.end(within(10s)));
  EXPECT_EQ(most, 1);
}

TEST(Executor, HasNoMoreThreadsThanItMay) {
  Executor executor(kStart, 2);
  std::atomic<int> inside{0}, most{0};
  Door door;
  for (int i = 0; i < 8; ++i)
    executor.run([&] {
      if (const int now = ++inside; now > most) most = now;
      if (inside == 2) door.open();
      EXPECT_TRUE(door.wait());
      --inside;
    });
  EXPECT_TRUE(executor.end(within(10s)));
  EXPECT_EQ(most, 2);
}

TEST(Executor, LeavesATaskThatStandsStill_AtTheDeadline) {
  const auto door = std::make_shared<Door>();
  const auto ended = std::make_shared<Door>();
  {
    Executor executor(kStart);
    executor.run([door] { EXPECT_TRUE(door->wait()); });
    executor.run([ended] { ended->open(); });
    EXPECT_FALSE(executor.end(within(10ms)));
  }  // nor does this wait
  door->open();
  EXPECT_TRUE(ended->wait()) << "what was queued runs all the same";
}

TEST(Executor, MayBeDestroyedByAnyOfTheThreadsThatItLeft) {
  for (int i = 0; i < 200; ++i) {
    const auto door = std::make_shared<Door>();
    {
      Executor executor(kStart, 3);
      for (int task = 0; task < 3; ++task) executor.run([door] { EXPECT_TRUE(door->wait()); });
      EXPECT_FALSE(executor.end(within(0ms)));
    }
    door->open();  // for all at once
  }
}

TEST(Executor, MayBeEndedByATaskOfItsOwn) {
  const auto ended = std::make_shared<Door>();
  auto executor = std::make_shared<Executor>(kStart);
  executor->run([executor, ended]() mutable {
    EXPECT_FALSE(executor->end(within(10s)));
    executor = nullptr;
    ended->open();
  });
  executor = nullptr;
  EXPECT_TRUE(ended->wait());
}

}  // namespace linkspan::base::executor_test
