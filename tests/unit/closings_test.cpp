#include "cuda/closings.hpp"

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

TEST(Closings, RunsAtOnceWhenNobodyStays) {
  Ran ran;
  Closings closings;
  EXPECT_TRUE(closings.free());
  closings.run(ran.once());
  EXPECT_TRUE(ran.within(10s));
}

TEST(Closings, WaitsForEveryStay) {
  Ran ran;
  Closings closings;
  std::optional<Closings::Stay> first = closings.stay(), second = closings.stay();
  closings.run(ran.once());
  EXPECT_FALSE(closings.free());
  first.reset();
  EXPECT_FALSE(ran.within(30ms));
  Closings::Stay moved = *std::move(second);
  second.reset();
  EXPECT_FALSE(ran.within(30ms));
  moved = {};
  EXPECT_TRUE(ran.within(10s));
}

TEST(Closings, WaitsForOlderStaysOnlyAfterThePatience) {
  Ran ran;
  Closings closings(50ms);
  std::optional<Closings::Stay> older = closings.stay();
  closings.run(ran.once());
  const Closings::Stay younger = closings.stay();
  EXPECT_FALSE(ran.within(100ms));
  older.reset();
  EXPECT_TRUE(ran.within(10s));
}

TEST(Closings, AStayComesWhenTheClosingThatRunsIsOver) {
  Ran began;
  std::atomic<bool> over{false};
  Closings closings;
  closings.run([&] {
    began.times.release();
    Ran().within(50ms);
    over = true;
  });
  ASSERT_TRUE(began.within(10s));
  const Closings::Stay stay = closings.stay();
  EXPECT_TRUE(over);
}

TEST(Closings, AStayDoesNotWaitForAClosingThatDoesNotEnd) {
  Ran began, go_on;
  Closings closings;
  closings.run([&] {
    began.times.release();
    go_on.within(60s);
  });
  ASSERT_TRUE(began.within(10s));
  const Closings::Stay stay = closings.stay();
  go_on.times.release();
}

TEST(Closings, WhatAClosingHoldsEndsWithoutTheLock) {
  struct Asker {
    Closings& closings;
    Ran& ran;
    ~Asker() {
      (void)closings.free();
      ran.times.release();
    }
  };
  Ran ran;
  Closings closings;
  closings.run([asker = std::shared_ptr<Asker>(new Asker{closings, ran})] {});
  EXPECT_TRUE(ran.within(10s));
}

TEST(Closings, DrainRunsWhatWaits) {
  Ran ran;
  Closings closings;
  const Closings::Stay stay = closings.stay();
  closings.run(ran.once());
  closings.run(ran.once());
  closings.drain();
  EXPECT_TRUE(ran.within(0s) && ran.within(0s));
}

TEST(Closings, EndWhatOutlivesThemToo) {
  struct Counted {
    std::atomic<int>& ends;
    ~Counted() { ++ends; }
  };
  std::atomic<int> ends{0};
  auto closings = std::make_shared<Closings>();
  auto before = Closings::end_by(closings, std::unique_ptr<Counted>(new Counted{ends}));
  auto after = Closings::end_by(closings, std::unique_ptr<Counted>(new Counted{ends}));
  before.reset();
  closings.reset();
  EXPECT_EQ(ends, 1);
  after.reset();
  EXPECT_EQ(ends, 2);
}

TEST(Closings, RunsItAtOnce_WhereThereIsNoMemoryToPutItOff) {
  Ran ran;
  Closings closings;
  std::optional<Closings::Stay> stay = closings.stay();
  {
    const test::NoMemory none("ls-test");
    base::named_thread<"ls-test">([&] {
      for (int i = 0; i < 100; ++i) closings.run(ran.once());  // the deque has room for some
    }).join();
    EXPECT_GT(test::NoMemory::failed(), 0u);
  }
  EXPECT_TRUE(ran.within(Duration::zero()));
  stay.reset();
}

}  // namespace closings_test
}  // namespace linkspan::cuda
