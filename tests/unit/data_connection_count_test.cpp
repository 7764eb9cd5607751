#include "transport/tcp/data_connection_count.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace linkspan::transport::tcp {
namespace stream_count_test {

using namespace std::chrono_literals;

/// A wire whose rate depends on the number of its connections, which come as soon as they are asked
/// for. Time is what it says.
class Played {
 public:
  /// `rate` returns the bytes each ns for a number of connections.
  Played(unsigned first, unsigned most, std::function<double(unsigned)> rate)
      : count(first, most), rate_(std::move(rate)), connections(first) {}

  /// Keeps something in flight for `time`, and polls as often as a connection does.
  void busy(Duration time) {
    count.work(now, true);
    for (Duration left = time; left > 0ns; left -= kStep) {
      now += kStep;
      bytes += static_cast<std::uint64_t>(rate_(connections) * static_cast<double>(kStep.count()));
      count.work(now, true);
      poll();
    }
    count.work(now, false);
  }
  void idle(Duration time) {
    now += time;
    count.work(now, false);
    poll();
  }
  void poll() {
    if (!count.is_due()) return;
    const unsigned wanted = count.update(bytes, connections);
    for (unsigned n = connections; n < wanted; ++n) {
      asked.push_back(wanted);
      if (fails)
        count.on_connection_refused();
      else
        ++connections;
    }
    EXPECT_LE(connections, 64u);
  }

  static constexpr Duration kStep = 100us;
  DataConnectionCount count;

 private:
  std::function<double(unsigned)> rate_;

 public:
  unsigned connections;
  bool fails = false;  // none can be made
  base::Time now{1h};
  std::uint64_t bytes = 0;
  std::vector<unsigned> asked;  // what was wanted, once for each connection that was asked for
};

constexpr double kOne = 4;  // GB/s of one connection
double each_helps(unsigned connections) { return kOne * connections; }
double none_helps(unsigned) { return kOne; }

TEST(DataConnectionCount, GrowsToItsBoundWhileEachDoublingHelps) {
  Played wire(1, 8, each_helps);
  wire.busy(5ms);
  EXPECT_EQ(wire.connections, 1u) << "not 32 MiB yet";
  wire.busy(145ms);
  EXPECT_EQ(wire.connections, 8u);
  wire.busy(20s);
  EXPECT_EQ(wire.connections, 8u);
  EXPECT_EQ(wire.asked, (std::vector<unsigned>{2, 4, 4, 8, 8, 8, 8}));
  EXPECT_FALSE(wire.count.may_grow());
}

TEST(DataConnectionCount, IsNeverBeyondItsBound) {
  for (unsigned most = 1; most <= 12; ++most)
    for (unsigned first = 1; first <= most; ++first) {
      Played wire(first, most, each_helps);
      wire.busy(1s);
      EXPECT_EQ(wire.connections, most);
      EXPECT_EQ(wire.asked.size(), most - first);
    }
  Played none(0, 0, each_helps);
  none.busy(100ms);
  EXPECT_TRUE(none.asked.empty());
}

TEST(DataConnectionCount, StopsAtTwoWhereNothingHelps) {
  Played wire(1, 64, none_helps);
  wire.busy(800ms);
  EXPECT_EQ(wire.connections, 2u);
  Played little(2, 64, [](unsigned connections) { return kOne * std::pow(1.09, connections / 2); });
  little.busy(800ms);
  EXPECT_EQ(little.connections, 4u) << "each doubling brings 9 %";
}

TEST(DataConnectionCount, WhatFillsTheBuffersOfNewConnectionsIsNoGain) {
  Played wire(1, 64, none_helps);
  for (int i = 0; i < 80; ++i) {
    const unsigned before = wire.connections;
    wire.busy(10ms);
    wire.bytes += (wire.connections - before) * DataConnectionCount::kWindowBytes / 4;
  }
  EXPECT_EQ(wire.connections, 2u);
}

TEST(DataConnectionCount, OneWindowInWhichOthersTookTheirShareDecidesNothing) {
  base::Time until{};
  Played wire(2, 8, [&](unsigned connections) {
    return connections == 4 && until == base::Time{} ? kOne : each_helps(connections);
  });
  while (wire.connections < 4) wire.busy(1ms);
  wire.busy(24ms);  // the first window of the four, and one that shows nothing
  until = wire.now;
  wire.busy(60ms);
  EXPECT_EQ(wire.connections, 8u);
}

TEST(DataConnectionCount, TriesAgainAfterSomeTimeOfWorkEverMoreSeldom) {
  Played wire(1, 64, none_helps);
  std::vector<Duration> grown;  // work before each doubling
  unsigned last = wire.connections;
  for (Duration worked{}; worked < 20s; worked += 10ms) {
    wire.busy(10ms);
    if (std::exchange(last, wire.connections) != wire.connections) grown.push_back(worked);
  }
  ASSERT_GE(grown.size(), 4u);
  EXPECT_LT(grown[0], 50ms);
  for (std::size_t i = 1; i < grown.size(); ++i) {
    const Duration pause = grown[i] - grown[i - 1],
                   due = DataConnectionCount::kPause * (1 << (i - 1));
    EXPECT_GT(pause, due) << i;
    EXPECT_LT(pause, due + 200ms) << i;
  }
}

TEST(DataConnectionCount, GoesOnWhenTheOtherLoadHasGone) {
  bool loaded = true;
  Played wire(1, 16, [&](unsigned connections) { return loaded ? kOne : each_helps(connections); });
  wire.busy(500ms);
  EXPECT_EQ(wire.connections, 2u);
  loaded = false;
  wire.busy(400ms);
  EXPECT_EQ(wire.connections, 2u);
  wire.busy(500ms);
  EXPECT_EQ(wire.connections, 16u);
}

TEST(DataConnectionCount, TimeWithoutWorkCountsNowhere) {
  // 1 MiB in each millisecond, then nothing for a second.
  const auto bursts = [](Played& wire, int count) {
    for (int i = 0; i < count; ++i) {
      wire.busy(1ms);
      wire.idle(1s);
    }
  };
  Played wire(1, 8, each_helps);
  bursts(wire, 60);
  EXPECT_EQ(wire.connections, 8u) << "the rate is that of the bursts";
  Played flat(1, 8, none_helps);
  bursts(flat, 800);
  EXPECT_EQ(flat.connections, 2u) << "an hour without work is no pause";
}

TEST(DataConnectionCount, SmallJobsAreLeftWithWhatTheyHave) {
  Played wire(2, 8, [](unsigned) { return 8.0 / 20000; });  // 8 bytes in 20 us
  wire.busy(60s);
  EXPECT_EQ(wire.connections, 2u);
}

TEST(DataConnectionCount, AConnectionThatCannotBeMadeIsTriedAgainLaterOnly) {
  Played wire(2, 8, each_helps);
  wire.fails = true;
  wire.busy(800ms);
  EXPECT_EQ(wire.connections, 2u);
  EXPECT_EQ(wire.asked.size(), 2u);
  wire.busy(5s);
  EXPECT_EQ(wire.asked.size(), 6u) << "1 s and 2 s later";
  wire.fails = false;
  wire.busy(60s);
  EXPECT_EQ(wire.connections, 8u);
}

/// Some requested connections arrive later than others. No window ends before the last one.
TEST(DataConnectionCount, WaitsForThoseThatItHasAskedFor) {
  DataConnectionCount count(2, 8);
  base::Time now{1h};
  std::uint64_t bytes = 0;
  const auto work = [&](unsigned connections) {
    for (int i = 0; i < 40; ++i) {
      count.work(now, true);
      now += 1ms;
      count.work(now, true);
      bytes += DataConnectionCount::kWindowBytes / 4;
      if (count.is_due()) count.update(bytes, connections);
    }
    return count.wanted();
  };
  for (const unsigned came : {0u, 1u}) EXPECT_EQ(work(came), 2u);
  EXPECT_EQ(work(2), 4u);
  EXPECT_EQ(work(3), 4u);
  EXPECT_TRUE(count.may_grow());
}

}  // namespace stream_count_test
}  // namespace linkspan::transport::tcp
