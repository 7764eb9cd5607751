// Tests the pool of streams that stagings share, over the simulated driver. pageable_test.cpp tests
// the bytes.
#include "copy/staging.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <set>
#include <thread>

#include "base/clock.hpp"
#include "base/named_thread.hpp"
#include "tests/support/fake_cuda/controls.hpp"
#include "tests/support/no_memory.hpp"
#include "tests/support/take.hpp"
#include "tests/unit/cuda_fixture.hpp"

namespace linkspan::copy {
namespace staging_test {

using test::take, test::must;

class StagingOnDevice : public cuda::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!fake) GTEST_SKIP() << "needs the simulated driver";
    fake.reset();
  }
  unsigned long long made() const { return fake.call_count("cuStreamCreateWithPriority"); }

  test::FakeCuda fake = test::FakeCuda::find();
  StagingStreams streams;
};

TEST_F(StagingOnDevice, LanesAreReservedOnceAndMadeWhereAllAreTaken) {
  for (int again = 0; again < 2; ++again) must(streams.reserve(*device, 3));
  EXPECT_EQ(made(), 3u);
  std::set<StagingStream*> taken;
  for (int i = 0; i < 3; ++i) taken.insert(take(streams.acquire(*device)));
  EXPECT_EQ(made(), 3u);
  must(streams.reserve(*device, 3));  // those that are taken count
  taken.insert(take(streams.acquire(*device)));
  EXPECT_EQ(taken.size(), 4u);
  EXPECT_EQ(made(), 4u);
  for (StagingStream* lane : taken) streams.release(*lane);
  for (std::size_t i = 0; i < taken.size(); ++i)
    EXPECT_TRUE(taken.contains(take(streams.acquire(*device))));
  EXPECT_EQ(made(), 4u);
}

TEST_F(StagingOnDevice, NoTwoThreadsHaveOneLane) {
  constexpr unsigned kThreads = 4;
  must(streams.reserve(*device, 2));
  std::array<std::atomic<int>, kThreads> holders{};  // by lane
  std::array<StagingStream*, kThreads> known{};
  base::Mutex mutex;
  const auto number = [&](StagingStream* lane) {
    const base::MutexLock lock(mutex);
    const auto at = std::ranges::find_if(
        known, [&](const auto* each) { return each == lane || each == nullptr; });
    if (at != known.end()) *at = lane;
    return static_cast<std::size_t>(at - known.begin());
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < kThreads; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 500; ++i) {
          StagingStream* const lane = take(streams.acquire(*device));
          const std::size_t n = number(lane);
          ASSERT_LT(n, kThreads) << "more streams than were ever taken at once";
          EXPECT_EQ(holders[n]++, 0);
          --holders[n];
          streams.release(*lane);
        }
      });
  }
  EXPECT_LE(made(), kThreads);
}

TEST_F(StagingOnDevice, ALaneIsHeldWhileTheGpuWorksAndNoLonger) {
  constexpr std::size_t kBytes = 64u << 10;
  must(streams.reserve(*device, 1));
  const auto there = take(cuda::DeviceBuffer::create(*scope, 2 * kBytes));
  Staging one(kBytes, streams), other(kBytes, streams);
  std::vector<std::pair<Staging*, StagingBuffer*>> slots;  // taken and filled, of both
  for (Staging* each : {&one, &other}) {
    const Staging::StagedRun run{there.address() + slots.size() * kBytes, kBytes};
    slots.emplace_back(
        each, take(each->acquire({.device = device, .runs = std::span(&run, 1), .to_gpu = true})));
    std::memset(slots.back().second->at(0), 7, kBytes);
  }
  for (const auto& [staging, slot] : slots) {
    must(staging->submit(*slot));
    const auto limit = base::Deadline::after(base::Clock::steady(), std::chrono::seconds(20));
    StagingBuffer* done = nullptr;
    while ((done = staging->next_done()) == nullptr && !limit.passed()) std::this_thread::yield();
    ASSERT_EQ(done, slot);
    EXPECT_TRUE(done->status().ok()) << done->status().to_string();
  }
  for (const auto& [staging, slot] : slots) staging->release(*slot);
  EXPECT_EQ(made(), 1u);
}

TEST_F(StagingOnDevice, EndsWhereThereIsNoMemory) {
  constexpr std::size_t kBytes = 64u << 10;
  StagingStreams all(topology.get());
  const auto there = take(cuda::DeviceBuffer::create(*scope, kBytes));
  std::optional<Staging> staging(std::in_place, kBytes, all);
  const Staging::StagedRun run{there.address(), kBytes};
  std::array<StagingBuffer*, Staging::kBuffersPerGpu> slots{};
  for (StagingBuffer*& slot : slots)
    slot = take(staging->acquire({.device = device, .runs = std::span(&run, 1), .to_gpu = true}));
  for (StagingBuffer* slot : slots) staging->release(*slot);
  const auto before = fake.call_count("cuMemFreeHost");
  const test::NoMemory none("ls-test");
  base::named_thread<"ls-test">([&] { staging.reset(); }).join();
  EXPECT_GT(test::NoMemory::failed(), 0u);
  EXPECT_EQ(fake.call_count("cuMemFreeHost") - before, slots.size());
}

/// An owner waits for its buffers at its end.
TEST_F(StagingOnDevice, ASubmissionWithoutMemoryLosesNoBuffer) {
  constexpr std::size_t kBytes = 4096;
  const auto there = take(cuda::DeviceBuffer::create(*scope, 2 * kBytes));
  const Staging::StagedRun runs[] = {{there.address(), 512}, {there.address() + kBytes, 512}};
  for (const bool has_stream : {false, true}) {
    StagingStreams all;
    Staging staging(kBytes, all);
    StagingBuffer* buffer = nullptr;
    std::optional<test::FakeCudaHold> held;  // not while a stream is made
    const auto acquire = [&] {
      buffer = take(staging.acquire({.device = device, .runs = runs, .to_gpu = true}));
      std::memset(buffer->at(0), 7, 512);
      if (has_stream) held.emplace(fake, 0);
    };
    if (has_stream) must(all.reserve(*device, 1));
    acquire();
    Status submitted;
    test::fail_each_allocation([&] { submitted = staging.submit(*buffer); },
                               [&](bool threw) {
                                 EXPECT_FALSE(threw);
                                 if (has_stream) {
                                   EXPECT_EQ(staging.next_done(), nullptr) << "the GPU is held";
                                 }
                                 held.reset();
                                 const auto limit = base::Deadline::in(std::chrono::seconds(10));
                                 while (!staging.idle() && !limit.passed())
                                   if (StagingBuffer* const done = staging.next_done())
                                     staging.release(*done);
                                 ASSERT_TRUE(staging.idle());
                                 acquire();
                               });
    EXPECT_TRUE(submitted.ok()) << submitted.to_string();
    staging.release(*buffer);
  }
}

}  // namespace staging_test
}  // namespace linkspan::copy
