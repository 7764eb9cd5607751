// Tests the kernels of KERNEL_GUIDE.md, compiled for the host: each is a thread, between two sides
// in memory.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/unit/device_fixture.hpp"

#define __global__ static
#include "examples/device/2proc/patterns.cuh"

namespace linkspan::device {
namespace device_patterns_test {

constexpr patterns::u64 kWait = 20'000'000'000;
constexpr std::size_t kBytes = 1 << 16;

class DevicePatterns : public ::testing::Test {
 protected:
  /// The arguments of a kernel on one side.
  struct Seat {
    Window& window;
    unsigned char* bytes;
    patterns::u32 failed = 0, wrong = 0;
    patterns::u32* words() const { return reinterpret_cast<patterns::u32*>(bytes); }
  };

  void TearDown() override {
    for (const Seat& seat : seats_) {
      EXPECT_EQ(seat.failed, 0u);
      EXPECT_EQ(seat.wrong, 0u);
    }
  }
  static void both(const std::function<void()>& first, const std::function<void()>& second) {
    const std::jthread beside(first);
    second();
  }

  WindowPair pair_{{.signals = 16, .mailboxes = 1, .mailbox_bytes = 64}, kBytes};
  Seat seats_[2] = {{pair_.from_a, raw(pair_.a.region.data())},
                    {pair_.from_b, raw(pair_.b.region.data())}};
  Seat &left_ = seats_[0], &right_ = seats_[1];
};

TEST_F(DevicePatterns, PutAndSignal) {
  std::vector<unsigned char> source(5001);
  std::iota(source.begin(), source.end(), static_cast<unsigned char>(3));
  both([&] { patterns::give(left_.window, source.data(), source.size(), &left_.failed); },
       [&] { patterns::take(right_.window, 1, kWait, &right_.failed); });
  EXPECT_EQ(std::memcmp(right_.bytes, source.data(), source.size()), 0);
}

TEST_F(DevicePatterns, PingPong) {
  for (patterns::u64 before : {0u, 100u})
    both([&] { patterns::ping(left_.window, 100, before, kWait, &left_.failed); },
         [&] { patterns::pong(right_.window, 100, before, kWait, &right_.failed); });
  EXPECT_EQ(left_.words()[2], 200u);
}

TEST_F(DevicePatterns, DoubleBuffering) {
  std::vector<patterns::u32> piece(777);
  both(
      [&] { patterns::produce(left_.window, piece.data(), 777, 200, 0, kWait, &left_.failed); },
      [&] { patterns::consume(right_.window, 777, 200, 0, kWait, &right_.wrong, &right_.failed); });
}

TEST_F(DevicePatterns, Ring) {
  std::vector<patterns::u32> values[2];
  for (patterns::u64 nth = 1; nth <= 20; ++nth) {
    for (patterns::u32 rank : {0u, 1u}) values[rank].assign(100, rank + 1);
    const auto go = [&](patterns::u32 rank) {
      Seat& side = seats_[rank];
      patterns::ring(side.window, side.window, rank, values[rank].data(), 100, nth, kWait,
                     &side.failed);
    };
    both([&] { go(0); }, [&] { go(1); });
    for (int k = 0; k < 100; ++k) ASSERT_EQ(left_.words()[k], 3u);
  }
}

TEST_F(DevicePatterns, FanIn) {
  std::vector<unsigned char> source(8 * 500, 9);
  std::vector<std::jthread> producers;
  for (patterns::u64 place = 0; place < 8; ++place)
    producers.emplace_back([&, place, failed = &left_.failed] {
      patterns::u32 own = 0;
      patterns::report(left_.window, source.data(), 500, place, &own);
      if (own != 0) std::atomic_ref{*failed}.store(1);
    });
  patterns::collect(right_.window, 8, kWait, &right_.failed);
  EXPECT_EQ(std::memcmp(right_.bytes, source.data(), source.size()), 0);
}

TEST_F(DevicePatterns, AllToAll) {
  constexpr patterns::u64 kRow = 64, kPart = 8192;
  std::vector<unsigned char> rows[2] = {std::vector<unsigned char>(kRow * 9, 1),
                                        std::vector<unsigned char>(kRow * 5, 2)};
  patterns::u32 counts[2][2] = {};
  const auto go = [&](patterns::u32 rank) {
    Seat& side = seats_[rank];
    const Window windows[2] = {side.window, side.window};
    const patterns::Rows mine{rows[rank].data(),
                              static_cast<patterns::u32>(rows[rank].size() / kRow)};
    const patterns::Rows all[2] = {mine, mine};
    patterns::dispatch(windows, all, 2, rank, kRow, kPart, &side.failed);
    patterns::combine(windows, 2, rank, 1, kPart, kWait, counts[rank], &side.failed);
    const std::vector<unsigned char>& theirs = rows[1 - rank];
    if (std::memcmp(side.bytes + (1 - rank) * kPart + 16, theirs.data(), theirs.size()) != 0)
      side.wrong = 1;
  };
  both([&] { go(0); }, [&] { go(1); });
  EXPECT_EQ(counts[0][1], 5u);
  EXPECT_EQ(counts[1][0], 9u);
}

TEST_F(DevicePatterns, AWaitForNothingEnds) {
  patterns::take(right_.window, 1, 1'000'000, &right_.failed);
  EXPECT_EQ(right_.failed, 1u);
  right_.failed = 0;
}

}  // namespace device_patterns_test
}  // namespace linkspan::device
