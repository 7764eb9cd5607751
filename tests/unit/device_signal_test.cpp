#include "linkspan/device/signal.cuh"

#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/device_fixture.hpp"

namespace linkspan::device {
namespace device_signal_test {

constexpr std::uint64_t kMillisecond = 1'000'000;

/// Returns the Outcome and the time that it took in nanoseconds.
template <class Call>
std::pair<Outcome, std::uint64_t> timed(Call call) {
  const std::uint64_t start = nanoseconds();
  const Outcome end = call();
  return {end, nanoseconds() - start};
}

TEST(DeviceSignal, PingPongCarriesDataBothWays) {
  constexpr std::uint64_t kRounds = 500, kBytes = 333;
  WindowPair pair({.signals = 2}, kBytes);
  const auto play = [&](Side& mine, const Window& window, bool serves, std::uint64_t seed) {
    Dawdle dawdle(serves ? 1 : 2);
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      if (serves || round > 1) {
        const std::uint64_t due = serves ? round : round - 1;
        ASSERT_EQ(wait_signal<Scope::block>(window, 1, due, window.within(kLong)), Outcome::ok);
        ASSERT_EQ(mine.region.difference((seed ^ 1) + 2 * due, {}), "") << round;
      }
      dawdle();
      Source source(seed + 2 * round, kBytes, round % 16);
      ASSERT_EQ(put_signal<Scope::block>(window, 0, source.data(), kBytes, 1), Outcome::ok);
    }
  };
  const std::jthread other([&] { play(pair.b, pair.from_b, true, 101); });
  play(pair.a, pair.from_a, false, 100);
}

TEST(DeviceSignal, ARaiseBeforeTheWaitIsNotLost) {
  WindowPair pair({}, 8);
  ASSERT_EQ(signal_add(pair.from_a, 63, 3), Outcome::ok);
  for (const std::uint64_t at_least : {0u, 1u, 3u})
    EXPECT_EQ(wait_signal(pair.from_b, 63, at_least, pair.from_b.within(0)), Outcome::ok);
  EXPECT_EQ(wait_signal(pair.from_b, 63, 4, pair.from_b.within(0)), Outcome::timed_out);
  EXPECT_EQ(read_signal(pair.from_b, 63), 3u);
  EXPECT_EQ(read_signal(pair.from_a, 63), 0u) << "each side has counters of its own";
}

TEST(DeviceSignal, OneCounterOfManyProducers) {
  constexpr std::uint64_t kThreads = 4, kEach = 5000;
  WindowPair pair({}, kThreads * 8);
  std::vector<std::jthread> producers;
  for (std::uint64_t thread = 0; thread < kThreads; ++thread)
    producers.emplace_back([&, thread] {
      Dawdle dawdle(static_cast<unsigned>(thread));
      for (std::uint64_t i = 1; i <= kEach; ++i) {
        ASSERT_EQ(put_signal<Scope::thread>(pair.from_a, thread * 8, &i, 8, 0, 2), Outcome::ok);
        if (i % 64 == 0) dawdle();
      }
    });
  ASSERT_EQ(
      wait_signal<Scope::warp>(pair.from_b, 0, 2 * kThreads * kEach, pair.from_b.within(kLong)),
      Outcome::ok);
  EXPECT_EQ(read_signal(pair.from_b, 0), 2 * kThreads * kEach);
  for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
    std::uint64_t last = 0;
    std::memcpy(&last, pair.b.region.data() + thread * 8, 8);
    EXPECT_EQ(last, kEach);
  }
}

TEST(DeviceSignal, AWaitEndsByTime) {
  WindowPair pair({}, 8);
  const auto [end, took] = timed([&] {
    return wait_signal<Scope::block>(pair.from_b, 0, 1, pair.from_b.within(20 * kMillisecond));
  });
  EXPECT_EQ(end, Outcome::timed_out);
  EXPECT_GE(took, 20 * kMillisecond);
  EXPECT_LT(took, 10 * kSecond);  // a machine with other work to do
  const auto [alone, brief] = timed([&] {
    return wait_signal(pair.from_b, 0, 1, Bound{kMillisecond, nullptr});
  });
  EXPECT_EQ(alone, Outcome::timed_out);
  EXPECT_GE(brief, kMillisecond);
}

TEST(DeviceSignal, AWaitEndsByTheAbortWord) {
  WindowPair pair({}, 8);
  const std::jthread host([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic_ref(pair.b.abort).store(1, std::memory_order_relaxed);
  });
  const auto [end, took] =
      timed([&] { return wait_signal(pair.from_b, 0, 1, pair.from_b.within(kLong)); });
  EXPECT_EQ(end, Outcome::aborted);
  EXPECT_LT(took, 10 * kSecond);
  EXPECT_EQ(wait_signal(pair.from_b, 0, 1, pair.from_b.within(kLong)), Outcome::aborted);
  ASSERT_EQ(signal_add(pair.from_a, 0), Outcome::ok);
  EXPECT_EQ(wait_signal(pair.from_b, 0, 1, pair.from_b.within(kLong)), Outcome::ok)
      << "what is there is there";
}

TEST(DeviceSignal, WhatCameBeforeTheAbortCounts) {
  for (int round = 0; round < 300; ++round) {
    WindowPair pair({}, 8);
    const std::jthread host([&] {
      EXPECT_EQ(signal_add(pair.from_a, 0), Outcome::ok);
      std::atomic_ref(pair.b.abort).store(1, std::memory_order_release);
    });
    ASSERT_EQ(wait_signal(pair.from_b, 0, 1, pair.from_b.within(kLong)), Outcome::ok) << round;
  }
}

}  // namespace device_signal_test
}  // namespace linkspan::device
