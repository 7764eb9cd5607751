// Tests many threads at once, and exporters that are killed before a call or during many.
#include <atomic>
#include <latch>
#include <thread>

#include "vcache/native/tests/fixture.hpp"

namespace linkspan::test {
namespace death_test {

constexpr std::uint64_t kMiB = 1u << 20;

class NvlinkThreads : public NvlinkTransfer,
                      public ::testing::WithParamInterface<unsigned /*handles kept*/> {};

/// Each thread copies a slice of its own there, back, and there again.
TEST_P(NvlinkThreads, AHundredAtOnceFindTheirBytes) {
  constexpr std::uint64_t kThreads = 100, kSlice = 32u << 10, kRounds = 10;
  ASSERT_EQ(nvlink_transfer_set_handle_cache(GetParam()), 0);
  const GpuMemory from(&lender(), 0, 1), back(&lender(), 1, 2), to(nullptr, 1, 3);
  std::vector<cuda::CUstream> streams;
  for (std::uint64_t i = 0; i < kThreads; ++i) streams.push_back(i % 2 == 0 ? stream(0) : nullptr);
  const auto before = stats();
  {
    std::latch all(kThreads);
    std::vector<std::jthread> threads;
    for (std::uint64_t i = 0; i < kThreads; ++i)
      threads.emplace_back([&, i] {
        const std::uint64_t at = i * kSlice;
        all.arrive_and_wait();
        for (std::uint64_t round = 0; round < kRounds; ++round) {
          EXPECT_EQ(transfer({from.at(at), to.at(at), kSlice, streams[i]}), 0)
              << nvlink_transfer_last_error();
          EXPECT_EQ(transfer({to.at(at), back.at(at), kSlice}), 0) << nvlink_transfer_last_error();
          EXPECT_EQ(transfer({from.at(GpuMemory::kEnd), to.at(at), 1}),
                    NVLINK_TRANSFER_INVALID_VALUE);
        }
      });
  }
  const auto after = stats();
  EXPECT_EQ(after.transfers - before.transfers, 2 * kThreads * kRounds);
  EXPECT_EQ(after.failures - before.failures, kThreads * kRounds);
  EXPECT_EQ(after.bytes - before.bytes, 2 * kThreads * kRounds * kSlice);
  EXPECT_EQ(to.difference({{0, 1, 0, kThreads * kSlice}}), "");
  EXPECT_EQ(back.difference({{0, 1, 0, kThreads * kSlice}}), "");
  EXPECT_EQ(nvlink_transfer_set_handle_cache(0), 0);
  EXPECT_EQ(stats().cached_handles, 0u);
}

INSTANTIATE_TEST_SUITE_P(Every, NvlinkThreads, ::testing::Values(0u, 1u, 16u),
                         [](const auto& kept) { return "keeping" + std::to_string(kept.param); });

class NvlinkCacheBeneath : public NvlinkTransfer {};

/// A handle that leaves the cache while a transfer uses it is closed after that transfer.
TEST_F(NvlinkCacheBeneath, TransfersItsSizeChangesAllTheTime) {
  constexpr std::uint64_t kThreads = 8, kSlice = 64u << 10, kRounds = 100;
  const GpuMemory from(&lender(), 0, 1), other(&lender(), 0, 2), to(nullptr, 1, 3);
  std::atomic<std::uint64_t> working{kThreads};
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t i = 0; i < kThreads; ++i)
      threads.emplace_back([&, i] {
        for (std::uint64_t round = 0; round < kRounds; ++round)
          for (const GpuMemory* each : {&other, &from})
            EXPECT_EQ(transfer({each->at(i * kSlice), to.at(i * kSlice), kSlice}), 0)
                << nvlink_transfer_last_error();
        --working;
      });
    for (unsigned size = 0; working != 0; size = (size + 1) % 3)
      EXPECT_EQ(nvlink_transfer_set_handle_cache(size), 0);
  }
  EXPECT_EQ(nvlink_transfer_set_handle_cache(0), 0);
  EXPECT_EQ(to.difference({{0, 1, 0, kThreads * kSlice}}), "");
}

class NvlinkDeath : public NvlinkTransfer {
 protected:
  static constexpr Duration kSoon = 10s;

  void TearDown() override { EXPECT_EQ(nvlink_transfer_set_handle_cache(0), 0); }
  /// Checks a copy whose exporter is dead: the right bytes, or an error.
  static void look(int code, const GpuMemory& to, std::uint64_t seed, std::uint64_t bytes) {
    if (code == 0)
      EXPECT_EQ(to.difference({{0, seed, 0, bytes}}), "");
    else
      EXPECT_NE(std::string(nvlink_transfer_last_error()), "") << code;
  }
};

TEST_F(NvlinkDeath, BeforeTheCall) {
  Lender victim;
  const GpuMemory from(&victim, 0, 1), to(nullptr, 1, 2);
  victim.kill();
  const auto begin_at = base::Clock::steady().now();
  EXPECT_EQ(transfer({from.at(0), to.at(0), kMiB}), NVLINK_TRANSFER_INVALID_VALUE);
  EXPECT_NE(std::string(nvlink_transfer_last_error()), "");
  std::uint64_t id = 0;
  EXPECT_EQ(begin({from.at(0), to.at(0), kMiB}, &id), NVLINK_TRANSFER_INVALID_VALUE);
  EXPECT_LT(base::Clock::steady().now() - begin_at, kSoon);
  EXPECT_EQ(to.difference(), "");
}

TEST_F(NvlinkDeath, BeforeACallWithAKeptHandle) {
  ASSERT_EQ(nvlink_transfer_set_handle_cache(4), 0);
  Lender victim;
  const GpuMemory from(&victim, 0, 1), to(nullptr, 1, 2);
  EXPECT_EQ(transfer({from.at(0), to.at(0), 4096}), 0) << nvlink_transfer_last_error();
  victim.kill();
  look(transfer({from.at(0), to.at(0), kMiB}), to, 1, kMiB);
}

TEST_F(NvlinkDeath, OfTheTargetsProcess) {
  Lender victim;
  const GpuMemory from(nullptr, 0, 1), to(&victim, 1, 2);
  victim.kill();
  EXPECT_EQ(transfer({from.at(0), to.at(0), kMiB}), NVLINK_TRANSFER_INVALID_VALUE);
}

/// The exporter dies while several threads transfer. Each transfer ends, and so do later ones.
TEST_F(NvlinkDeath, InTheMidstOfMany) {
  constexpr std::uint64_t kThreads = 4, kBytes = 8 * kMiB;
  for (const unsigned kept : {0u, 4u}) {
    ASSERT_EQ(nvlink_transfer_set_handle_cache(kept), 0);
    Lender victim;
    const GpuMemory from(&victim, 0, 1, kBytes);
    std::vector<std::unique_ptr<GpuMemory>> to;
    for (std::uint64_t i = 0; i < kThreads; ++i)
      to.push_back(std::make_unique<GpuMemory>(nullptr, 1, 2 + i, kBytes));
    std::atomic<std::uint64_t> done{0};
    std::atomic<bool> dead{false};
    std::atomic<base::Time> last{};
    {
      std::vector<std::jthread> threads;
      for (auto& target : to)
        threads.emplace_back([&, target = target.get()] {
          int after = 0, code = 0;
          while (after < 3) {
            after += dead ? 1 : 0;
            code = transfer({from.at(0), target->at(0), kBytes});
            EXPECT_TRUE(code == 0 || dead) << code << ": " << nvlink_transfer_last_error();
            ++done;
          }
          look(code, *target, 1, kBytes);
          last = base::Clock::steady().now();
        });
      const auto limit = base::Deadline::after(base::Clock::steady(), kSoon);
      while (done < 8 && !limit.passed()) std::this_thread::yield();
      EXPECT_GE(done, 8u);
      dead = true;
      victim.kill();
    }
    const auto killed_before = base::Clock::steady().now() - last.load();
    EXPECT_LT(killed_before, kSoon);
  }
}

TEST_F(NvlinkDeath, WhileTransfersThatWereBegunRun) {
  Lender victim;
  constexpr std::uint64_t kBytes = 64 * kMiB;
  const GpuMemory from(&victim, 0, 1, kBytes);
  std::vector<std::unique_ptr<GpuMemory>> to;
  std::vector<std::uint64_t> ids(4);
  while (to.size() < ids.size()) to.push_back(std::make_unique<GpuMemory>(nullptr, 1, 2, kBytes));
  for (std::size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(begin({from.at(0), to[i]->at(0), kBytes}, &ids[i]), 0)
        << nvlink_transfer_last_error();
  victim.kill();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const int code = nvlink_transfer_wait(ids[i], 10000);
    EXPECT_NE(code, NVLINK_TRANSFER_NOT_READY);
    look(code, *to[i], 1, kBytes);
  }
}

}  // namespace death_test
}  // namespace linkspan::test
