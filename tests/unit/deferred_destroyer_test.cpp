#include "cuda/deferred_destroyer.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <semaphore>

#include "base/named_thread.hpp"
#include "tests/support/no_memory.hpp"

namespace linkspan::cuda {
namespace closings_test {

using namespace std::chrono_literals;

struct Ran {
  std::counting_semaphore<128> times{0};
  std::function<void()> once() {
    return [this] { times.release(); };
  }
  bool within(Duration time) { return times.try_acquire_for(time); }
};

TEST(DeferredDestroyer, RunsAtOnceWhenNobodyStays) {
  Ran ran;
  DeferredDestroyer destroyer;
  EXPECT_TRUE(destroyer.unguarded());
  destroyer.run(ran.once());
  EXPECT_TRUE(ran.within(10s));
}

TEST(DeferredDestroyer, WaitsForEveryStay) {
  Ran ran;
  DeferredDestroyer destroyer;
  std::optional<DeferredDestroyer::DeferralGuard> first = destroyer.defer(),
                                                  second = destroyer.defer();
  destroyer.run(ran.once());
  EXPECT_FALSE(destroyer.unguarded());
  first.reset();
  EXPECT_FALSE(ran.within(30ms));
  DeferredDestroyer::DeferralGuard moved = *std::move(second);
  second.reset();
  EXPECT_FALSE(ran.within(30ms));
  moved = {};
  EXPECT_TRUE(ran.within(10s));
}

TEST(DeferredDestroyer, WaitsForOlderStaysOnlyAfterThePatience) {
  Ran ran;
  DeferredDestroyer destroyer(50ms);
  std::optional<DeferredDestroyer::DeferralGuard> older = destroyer.defer();
  destroyer.run(ran.once());
  const DeferredDestroyer::DeferralGuard younger = destroyer.defer();
  EXPECT_FALSE(ran.within(100ms));
  older.reset();
  EXPECT_TRUE(ran.within(10s));
}

TEST(DeferredDestroyer, AStayComesWhenTheClosingThatRunsIsOver) {
  Ran began;
  std::atomic<bool> over{false};
  DeferredDestroyer destroyer;
  destroyer.run([&] {
    began.times.release();
    Ran().within(50ms);
    over = true;
  });
  ASSERT_TRUE(began.within(10s));
  const DeferredDestroyer::DeferralGuard stay = destroyer.defer();
  EXPECT_TRUE(over);
}

TEST(DeferredDestroyer, AStayDoesNotWaitForAClosingThatDoesNotEnd) {
  Ran began, go_on;
  DeferredDestroyer destroyer;
  destroyer.run([&] {
    began.times.release();
    go_on.within(60s);
  });
  ASSERT_TRUE(began.within(10s));
  const DeferredDestroyer::DeferralGuard stay = destroyer.defer();
  go_on.times.release();
}

TEST(DeferredDestroyer, WhatAClosingHoldsEndsWithoutTheLock) {
  struct Asker {
    DeferredDestroyer& destroyer;
    Ran& ran;
    ~Asker() {
      (void)destroyer.unguarded();
      ran.times.release();
    }
  };
  Ran ran;
  DeferredDestroyer destroyer;
  destroyer.run([asker = std::shared_ptr<Asker>(new Asker{destroyer, ran})] {});
  EXPECT_TRUE(ran.within(10s));
}

TEST(DeferredDestroyer, DrainRunsWhatWaits) {
  Ran ran;
  DeferredDestroyer destroyer;
  const DeferredDestroyer::DeferralGuard stay = destroyer.defer();
  destroyer.run(ran.once());
  destroyer.run(ran.once());
  destroyer.drain();
  EXPECT_TRUE(ran.within(0s) && ran.within(0s));
}

TEST(DeferredDestroyer, RunsEachOnce_WhereTheThreadStartsWhileOneDrains) {
  Ran first, others;
  std::binary_semaphore go_on{0};
  std::function<void()> closing = [&] {
    first.times.release();
    go_on.acquire();
  };
  DeferredDestroyer destroyer;
  std::optional<test::NoMemory> none(std::in_place, "ls-test");  // nor a thread
  std::jthread draining = base::named_thread<"ls-test">([&] {
    destroyer.run(std::move(closing));
    destroyer.drain();
  });
  ASSERT_TRUE(first.within(10s));
  none.reset();
  for (int i = 0; i < 3; ++i) destroyer.run(others.once());
  EXPECT_FALSE(others.within(50ms)) << "beside the one that runs";
  go_on.release();
  draining.join();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(others.within(10s));
  EXPECT_FALSE(first.within(0s) || others.within(50ms));
}

TEST(DeferredDestroyer, EndWhatOutlivesThemToo) {
  struct Counted {
    std::atomic<int>& ends;
    ~Counted() { ++ends; }
  };
  std::atomic<int> ends{0};
  auto destroyer = std::make_shared<DeferredDestroyer>();
  auto before = DeferredDestroyer::end_by(destroyer, std::unique_ptr<Counted>(new Counted{ends}));
  auto after = DeferredDestroyer::end_by(destroyer, std::unique_ptr<Counted>(new Counted{ends}));
  before.reset();
  destroyer.reset();
  EXPECT_EQ(ends, 1);
  after.reset();
  EXPECT_EQ(ends, 2);
}

TEST(DeferredDestroyer, RunsItAtOnce_WhereThereIsNoMemoryToPutItOff) {
  Ran ran;
  DeferredDestroyer destroyer;
  std::optional<DeferredDestroyer::DeferralGuard> stay = destroyer.defer();
  {
    const test::NoMemory none("ls-test");
    base::named_thread<"ls-test">([&] {
      for (int i = 0; i < 100; ++i) destroyer.run(ran.once());  // the deque has room for some
    }).join();
    EXPECT_GT(test::NoMemory::failed(), 0u);
  }
  EXPECT_TRUE(ran.within(Duration::zero()));
  stay.reset();
}

}  // namespace closings_test
}  // namespace linkspan::cuda
