#include "transport/tcp/data_connection_thread.hpp"

#include <gtest/gtest.h>

namespace linkspan::transport::tcp {
namespace stream_thread_test {

using namespace std::chrono_literals;

/// At any time after the turn: the thread may have lost its core before it read the clock.
TEST(SleepDecision, NeverSleepsWhenTheLastTurnMovedSomething) {
  for (const Duration late : {Duration(0ns), SleepDecision::kSpin, Duration(1s), Duration(1h)}) {
    base::FakeClock clock;
    SleepDecision decision(clock.now());
    decision.on_poll(true, false, clock.now());
    clock.advance(late);
    EXPECT_FALSE(decision.may_sleep(clock.now())) << late.count();
  }
}

TEST(SleepDecision, NeverSleepsBeforeTheFirstTurn) {
  base::FakeClock clock;
  const SleepDecision decision(clock.now());
  clock.advance(1h);
  EXPECT_FALSE(decision.may_sleep(clock.now()));
}

TEST(SleepDecision, NeverSleepsWhileAGpuCopies) {
  base::FakeClock clock;
  SleepDecision decision(clock.now());
  decision.on_poll(false, true, clock.now());
  clock.advance(1h);
  EXPECT_FALSE(decision.may_sleep(clock.now()));
}

TEST(SleepDecision, SleepsWhenTheLastTurnMovedNothingForAWhile) {
  base::FakeClock clock;
  SleepDecision decision(clock.now());
  decision.on_poll(true, false, clock.now());
  decision.on_poll(false, false, {});
  EXPECT_FALSE(decision.may_sleep(clock.now()));
  clock.advance(SleepDecision::kSpin);
  EXPECT_TRUE(decision.may_sleep(clock.now()));
}

}  // namespace stream_thread_test
}  // namespace linkspan::transport::tcp
