#include "copy/chooser.hpp"

#include <gtest/gtest.h>

namespace linkspan::copy {
namespace chooser_test {

using std::chrono::microseconds, std::chrono::milliseconds, std::chrono::seconds;

constexpr std::uint64_t kKiB = 1024, kMiB = kKiB * kKiB;

Method choose(std::uint64_t pieces, std::uint64_t piece_bytes, Link link = Link::peer) {
  return choose_gpu(
      {.pieces = pieces, .bytes = pieces * piece_bytes, .link = link, .kernel_available = true});
}

TEST(ChooserTest, TakesTheCopyEngineForFewOrLargePieces) {
  EXPECT_EQ(choose(1, 8), Method::copy_engine);
  EXPECT_EQ(choose(1, kMiB), Method::copy_engine);
  EXPECT_EQ(choose(1, 1024 * kMiB), Method::copy_engine);
  EXPECT_EQ(choose(64, 64 * kMiB), Method::copy_engine);
  EXPECT_EQ(choose(16, 16 * kMiB, Link::host), Method::copy_engine);
  EXPECT_EQ(choose(0, 0), Method::copy_engine);
}

TEST(ChooserTest, TakesTheKernelForManySmallPieces) {
  EXPECT_EQ(choose(8192, 4 * kKiB), Method::sm_kernel);
  EXPECT_EQ(choose(8192, 4 * kKiB, Link::host), Method::sm_kernel);
  EXPECT_EQ(choose(100'000, 256), Method::sm_kernel);
  EXPECT_EQ(choose(16, kMiB), Method::sm_kernel);
  EXPECT_EQ(choose(64, 64 * kKiB, Link::host), Method::sm_kernel);
}

TEST(ChooserTest, NeverTakesAKernelThatIsNotThere) {
  EXPECT_EQ(choose_gpu({.pieces = 8192,
                        .bytes = 8192 * 4 * kKiB,
                        .link = Link::peer,
                        .kernel_available = false}),
            Method::copy_engine);
}

TEST(ChooserTest, ExpectsAboutWhatWasMeasured) {
  // Two H200, one order from start() to the end seen by poll().
  const auto near = [](double got, double measured) { EXPECT_NEAR(got, measured, measured / 8); };
  near(expected_gbps(Method::copy_engine, Link::peer, 1024 * kMiB, 1), 388);
  near(expected_gbps(Method::copy_engine, Link::peer, 16 * kMiB, 1), 325);
  near(expected_gbps(Method::copy_engine, Link::peer, kMiB, 1), 107);
  near(expected_gbps(Method::copy_engine, Link::peer, 16 * kMiB, 16), 198);
  near(expected_gbps(Method::copy_engine, Link::peer, 511 * 4 * kKiB, 511), 1.9);
  near(expected_gbps(Method::copy_engine, Link::host, 256 * kMiB, 4), 55.4);
  near(expected_gbps(Method::sm_kernel, Link::peer, kMiB, 1), 74.5);
  near(expected_gbps(Method::sm_kernel, Link::peer, 16 * kMiB, 16), 267);
  near(expected_gbps(Method::sm_kernel, Link::peer, 8192 * 4 * kKiB, 8192), 277);
  near(expected_gbps(Method::sm_kernel, Link::peer, 512 * kMiB, 1), 363);
  near(expected_gbps(Method::sm_kernel, Link::host, 256 * kMiB, 1), 51.2);
  const auto by_threads = [](Method method, unsigned threads) {
    return expected_gbps(method, Link::host, 512 * kMiB, 1, threads);
  };
  near(by_threads(Method::cpu_threads, 1), 8.2);
  near(by_threads(Method::cpu_threads, 4), 29.4);
  near(by_threads(Method::cpu_threads, 8), 48);
  near(by_threads(Method::pageable, 2), 17);
  near(by_threads(Method::pageable, 4), 29);
  near(by_threads(Method::pageable, 8), 46.6);
  EXPECT_EQ(expected_gbps(Method::copy_engine, Link::peer, 0, 0), 0);
  near(relayed_gbps(1024 * kMiB, 4, 2), 106.6);  // a bare relay
  EXPECT_EQ(relayed_gbps(0, 0, 2), 0);
}

TEST(ChooserTest, GoesByTheRatesThatWereMeasured) {
  const Rates slow_engine{.engine = {.start_us = 50, .piece_us = 2, .bytes = 20e3},
                          .kernel = {.start_us = 5, .piece_us = 0.01, .bytes = 10e3}};
  const auto choose_by = [&](std::uint64_t bytes) {
    return choose_gpu({.pieces = 1,
                       .bytes = bytes,
                       .link = Link::peer,
                       .kernel_available = true,
                       .rates = &slow_engine});
  };
  EXPECT_EQ(choose_by(8), Method::sm_kernel);
  EXPECT_EQ(choose_by(64 * kMiB), Method::copy_engine);
  EXPECT_NEAR(expected_gbps(Method::copy_engine, Link::peer, 1024 * kMiB, 1, 1, &slow_engine), 20,
              0.1);
  const auto soonest = [](const Rates* rates) {
    return earliest_time(Method::copy_engine, Link::peer, 1024 * kMiB, 1, rates);
  };
  EXPECT_EQ(soonest(&slow_engine), soonest(nullptr)) << "a busy GPU measures slow";
  Rates fast = slow_engine;
  fast.engine.bytes = 1e6;
  EXPECT_LT(soonest(&fast), soonest(nullptr) / 2);
}

TEST(ChooserTest, RelaysWhatGainsHalfAsMuchAgain) {
  const auto gain = [](std::uint64_t bytes) {
    return relayed_gbps(bytes, 1, 2) / expected_gbps(Method::copy_engine, Link::host, bytes, 1);
  };
  EXPECT_GT(gain(kMinRelayBytes), 1.5);
  EXPECT_GT(gain(kMinRelayBytes / 4), 1);
  EXPECT_LT(gain(kMinRelayBytes / 16), 1);
}

TEST(ChooserTest, ExpectsMoreTimeForMore) {
  for (Method method : {Method::copy_engine, Method::sm_kernel, Method::cpu_threads,
                        Method::pageable, Method::cross_process}) {
    Duration before = Duration::zero();
    for (std::uint64_t bytes = 1; bytes <= 1024 * kMiB; bytes *= 8) {
      const Duration time = expected_time(method, Link::host, bytes, 1);
      EXPECT_GE(time, before) << name_of(method);
      for (const unsigned threads : {1u, 8u, 32u}) {
        EXPECT_LE(earliest_time(method, Link::host, bytes, threads),
                  expected_time(method, Link::host, bytes, 1, threads))
            << name_of(method);
      }
      before = time;
    }
    EXPECT_GT(before, milliseconds(10)) << name_of(method);
    EXPECT_LT(before, seconds(1)) << name_of(method);
  }
}

TEST(ChooserTest, LooksMoreRarelyTheLaterItGets) {
  const base::Time due{seconds(5)};
  EXPECT_EQ(poll_hint(due, due - milliseconds(3)), due);
  EXPECT_EQ(poll_hint(due, due), due);
  EXPECT_EQ(poll_hint(due, due + microseconds(160)), due + microseconds(170));
  EXPECT_EQ(poll_hint(due, due + seconds(9)), due + seconds(9) + milliseconds(1));
}

}  // namespace chooser_test
}  // namespace linkspan::copy
