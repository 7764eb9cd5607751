#include "base/clock.hpp"

#include <gtest/gtest.h>

namespace linkspan::base {

using namespace std::chrono_literals;

TEST(FakeClock, StandsStillAndNeverGoesBack) {
  FakeClock clock;
  const Time start = clock.now();
  EXPECT_EQ(clock.now(), start);
  clock.advance(3s);
  clock.advance(-2s);
  EXPECT_EQ(clock.now() - start, 3s);
}

TEST(Clock, SteadyDoesNotGoBack) {
  const Time first = Clock::steady().now();
  EXPECT_GE(Clock::steady().now(), first);
}

TEST(Deadline, PassesAtItsTimeAndStaysPassed) {
  FakeClock clock;
  const Deadline deadline = Deadline::after(clock, 10ms);
  EXPECT_EQ(deadline.left(), 10ms);
  clock.advance(10ms - 1ns);
  EXPECT_FALSE(deadline.passed());
  clock.advance(1ns);
  EXPECT_TRUE(deadline.passed());
  clock.advance(1h);
  EXPECT_EQ(deadline.left(), 0ns);
}

TEST(Deadline, TakesAnyWait) {
  FakeClock clock;
  clock.advance(5s);
  EXPECT_TRUE(Deadline::after(clock, -1s).passed());
  EXPECT_TRUE(Deadline::after(clock, Duration::min()).passed());
  EXPECT_GT(Deadline::after(clock, Duration::max()).left(), 24h * 365 * 99);
}

TEST(Deadline, LeavesRoomForSums) {
  FakeClock clock;
  const Duration left = Deadline::after(clock, Duration::max()).left();
  clock.advance(24h * 365);
  EXPECT_LT(left, Time::max() - clock.now());
  // Before glibc 2.30 the standard library's waits add it to the system's time.
  EXPECT_LT(left, std::chrono::system_clock::time_point::max() - std::chrono::system_clock::now());
}

TEST(Deadline, RoundsMillisecondsUp) {
  FakeClock clock;
  EXPECT_EQ(Deadline::after(clock, 0ns).left_ms(), 0);
  EXPECT_EQ(Deadline::after(clock, 1ns).left_ms(), 1);
  EXPECT_EQ(Deadline::after(clock, 2ms).left_ms(), 2);
  EXPECT_EQ(Deadline::after(clock, Duration::max()).left_ms(), INT_MAX);
}

}  // namespace linkspan::base
