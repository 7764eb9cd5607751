// Tests transfers that begin without waiting: polled, awaited, canceled, and forgotten after their
// end.
#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/support/fake_cuda/controls.hpp"
#include "tests/support/held_stream.hpp"
#include "tests/support/no_memory.hpp"
#include "vcache/native/tests/fixture.hpp"

namespace linkspan::test {
namespace begun_test {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint32_t kLongMs = 10000;

class NvlinkBegun : public NvlinkTransfer {
 protected:
  void SetUp() override {
    NvlinkTransfer::SetUp();
    if (IsSkipped()) return;
    // An earlier test's handle that is still to be closed would wait for the stream held here.
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    while (stats().open_handles != 0 && !limit.passed()) std::this_thread::yield();
    from = std::make_unique<GpuMemory>(nullptr, 0, 1);
    to = std::make_unique<GpuMemory>(&lender(), 1, 2);
    whole = {.from = from->at(0), .to = to->at(0), .bytes = kMiB};
  }
  std::uint64_t begun(const Request& request, std::uint32_t timeout_ms = 0) {
    std::uint64_t id = 0;
    const auto start = base::Clock::steady().now();
    EXPECT_EQ(begin(request, &id, timeout_ms), 0) << nvlink_transfer_last_error();
    EXPECT_NE(id, 0u);
    EXPECT_LT(base::Clock::steady().now() - start, 10s) << "it waited";
    return id;
  }
  /// Checks that nothing is touched after the end of a transfer.
  void stays(const std::vector<Expected>& expected = {}) const {
    EXPECT_EQ(to->difference(expected), "");
  }

  std::unique_ptr<GpuMemory> from, to;
  Request whole;
};

TEST_F(NvlinkBegun, ItEndsAndIsForgotten) {
  for (void* queue : {static_cast<void*>(nullptr), static_cast<void*>(stream(0))}) {
    whole.stream = queue;
    const std::uint64_t id = begun(whole);
    EXPECT_EQ(nvlink_transfer_wait(id, kLongMs), 0) << nvlink_transfer_last_error();
    stays({{0, 1, 0, kMiB}});
    EXPECT_EQ(nvlink_transfer_wait(id, 0), NVLINK_TRANSFER_INVALID_VALUE);
    EXPECT_EQ(nvlink_transfer_test(id, nullptr), NVLINK_TRANSFER_INVALID_VALUE);
    EXPECT_EQ(nvlink_transfer_cancel(id), NVLINK_TRANSFER_INVALID_VALUE);
    to->fill(2);
  }
}

TEST_F(NvlinkBegun, UnknownNumbers) {
  const std::uint64_t unknown[] = {0, 1u << 30, ~std::uint64_t{0}};
  for (const std::uint64_t id : unknown) {
    EXPECT_EQ(nvlink_transfer_test(id, nullptr), NVLINK_TRANSFER_INVALID_VALUE);
    EXPECT_EQ(nvlink_transfer_wait(id, 0), NVLINK_TRANSFER_INVALID_VALUE);
    EXPECT_EQ(nvlink_transfer_cancel(id), NVLINK_TRANSFER_INVALID_VALUE);
  }
}

TEST_F(NvlinkBegun, WhatACallRefusesIsNotBegun) {
  std::uint64_t id = 0;
  Request wrong = whole;
  wrong.from.offset = GpuMemory::kEnd;
  EXPECT_EQ(begin(wrong, &id), NVLINK_TRANSFER_INVALID_VALUE);
  wrong = whole;
  wrong.to.gpu = 99;
  EXPECT_EQ(begin(wrong, &id), NVLINK_TRANSFER_INVALID_DEVICE);
  wrong = whole;
  wrong.from.pointer = 0;
  EXPECT_EQ(begin(wrong, &id), NVLINK_TRANSFER_INVALID_DEVICE_POINTER);
  wrong = whole;
  wrong.stream = stream(1);
  EXPECT_EQ(begin(wrong, &id), NVLINK_TRANSFER_INVALID_STREAM);
  EXPECT_EQ(begin(whole, nullptr), NVLINK_TRANSFER_INVALID_VALUE);
  stays();
}

/// A begin() that fails stores no number, and later handles are closed. A transfer that runs goes
/// on, and its end is not lost.
TEST_F(NvlinkBegun, BeginsWholeOrNotAtAll_WithoutMemory) {
  const GpuMemory ours(nullptr, 1, 3);  // to close a handle needs memory in the simulated driver
  const Request request{from->at(0), ours.at(0), kMiB, stream(0)};
  ASSERT_EQ(nvlink_transfer_wait(begun(request), kLongMs), 0);  // what is made once, is made now
  HeldStream held;
  held.hold();
  whole.stream = held.order().handle;
  const std::uint64_t running = begun(whole), failures = stats().failures;
  Reported told;
  std::uint64_t id = 0, failed = 0;
  fail_each_allocation(
      [&] {
        id = 0;
        told = reported("nvlink_transfer_begin: ", [&] { return begin(request, &id); });
      },
      [&](bool) {
        if (told.code == 0) {
          EXPECT_EQ(nvlink_transfer_wait(id, kLongMs), 0) << nvlink_transfer_last_error();
          return;
        }
        EXPECT_EQ(told.code, NVLINK_TRANSFER_FAILED);
        EXPECT_TRUE(told.has_text);
        EXPECT_EQ(id, 0u);
        ++failed;
      });
  EXPECT_EQ(stats().failures - failures, failed);
  const auto ask = [&] {
    told = reported("nvlink_transfer_wait: ", [&] { return nvlink_transfer_wait(running, 100); });
  };
  fail_each_allocation(ask, [&](bool) { EXPECT_EQ(told.code, NVLINK_TRANSFER_NOT_READY); });
  EXPECT_EQ(nvlink_transfer_cancel(running), 0);
  told = {};
  fail_each_allocation(
      [&] {
        while (told.code == NVLINK_TRANSFER_NOT_READY) ask();
      },
      [&](bool) {
        EXPECT_EQ(told.code, NVLINK_TRANSFER_CANCELED);
        EXPECT_TRUE(told.has_text);
      });
  held.go_on();
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  while (stats().open_handles != 0 && !limit.passed()) std::this_thread::yield();
  EXPECT_EQ(stats().open_handles, 0u);
}

TEST_F(NvlinkBegun, NoBytesEndWell) {
  const std::uint64_t id = begun({});
  EXPECT_EQ(nvlink_transfer_wait(id, kLongMs), 0);
}

TEST_F(NvlinkBegun, BehindAHeldStreamItWaits) {
  HeldStream held;
  held.hold();
  whole.stream = held.order().handle;
  const std::uint64_t id = begun(whole);
  std::uint64_t done = 7;
  EXPECT_EQ(nvlink_transfer_test(id, &done), NVLINK_TRANSFER_NOT_READY);
  EXPECT_EQ(done, 0u);
  EXPECT_EQ(nvlink_transfer_wait(id, 50), NVLINK_TRANSFER_NOT_READY);
  stays();
  held.go_on();
  EXPECT_EQ(nvlink_transfer_wait(id, kLongMs), 0) << nvlink_transfer_last_error();
  stays({{0, 1, 0, kMiB}});
}

TEST_F(NvlinkBegun, ItsDeadlineEndsIt) {
  HeldStream held;
  held.hold();
  whole.stream = held.order().handle;
  const std::uint64_t id = begun(whole, 50);
  EXPECT_EQ(nvlink_transfer_wait(id, 5000), NVLINK_TRANSFER_TIMED_OUT);
  EXPECT_EQ(nvlink_transfer_test(id, nullptr), NVLINK_TRANSFER_INVALID_VALUE);
  held.go_on();
  held.synchronize();
  stays();
}

/// The caller must not wait for the closing of the handle, which waits for the held GPU.
TEST_F(NvlinkBegun, ItsDeadlineEndsItWithALentSourceToo) {
  const GpuMemory lent(&lender(), 0, 3);
  HeldStream held;
  held.hold();
  const std::uint64_t first = begun({lent.at(0), to->at(0), kMiB, held.order().handle}, 50);
  const std::uint64_t second = begun({lent.at(0), to->at(kMiB), kMiB, held.order().handle});
  EXPECT_EQ(nvlink_transfer_wait(first, 5000), NVLINK_TRANSFER_TIMED_OUT);
  EXPECT_EQ(nvlink_transfer_cancel(second), 0);
  EXPECT_EQ(nvlink_transfer_wait(second, 5000), NVLINK_TRANSFER_CANCELED);
  held.go_on();
  held.synchronize();
  stays();
}

TEST_F(NvlinkBegun, AProcessThatEndsBesideThemEndsWell) {
  const std::uint64_t bytes = 256 * kMiB;
  const GpuMemory lent(&lender(), 0, 3, bytes), target(&lender(), 1, 4, bytes);
  Lender leaver;
  EXPECT_EQ(leaver.begin_and_leave({lent.at(0), target.at(0), bytes}), 0);
}  // ~Child checks that it exits with 0, and soon

TEST_F(NvlinkBegun, ADeadlineThatDoesNotComeChangesNothing) {
  const std::uint64_t id = begun(whole, kLongMs);
  EXPECT_EQ(nvlink_transfer_wait(id, kLongMs), 0) << nvlink_transfer_last_error();
  stays({{0, 1, 0, kMiB}});
}

TEST_F(NvlinkBegun, CanceledBehindAHeldStreamItMovesNothing) {
  HeldStream held;
  held.hold();
  whole.stream = held.order().handle;
  const auto before = stats();
  const std::uint64_t id = begun(whole);
  EXPECT_EQ(nvlink_transfer_cancel(id), 0);
  EXPECT_EQ(nvlink_transfer_wait(id, 5000), NVLINK_TRANSFER_CANCELED);
  EXPECT_EQ(nvlink_transfer_cancel(id), NVLINK_TRANSFER_INVALID_VALUE);
  held.go_on();
  held.synchronize();
  stays();
  EXPECT_EQ(stats().failures - before.failures, 1u);
}

/// After the end no further byte arrives, whatever arrived before.
TEST_F(NvlinkBegun, CanceledInItsMidstItTouchesNothingAfterItsEnd) {
  const std::uint64_t bytes = (simulated() ? 256 : 1024) * kMiB;
  const GpuMemory large(nullptr, 0, 1, bytes);
  GpuMemory target(nullptr, 1, 2, bytes);
  const std::uint64_t id = begun({large.at(0), target.at(0), bytes});
  std::uint64_t done = 0;
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  int code = NVLINK_TRANSFER_NOT_READY;
  while (code == NVLINK_TRANSFER_NOT_READY && done == 0 && !limit.passed())
    code = nvlink_transfer_test(id, &done);
  if (code == NVLINK_TRANSFER_NOT_READY) {  // a GPU may have been faster
    EXPECT_EQ(nvlink_transfer_cancel(id), 0);
    code = nvlink_transfer_wait(id, kLongMs);
  }
  EXPECT_TRUE(code == NVLINK_TRANSFER_CANCELED || code == 0) << code;
  // A piece copied after the end would differ from these bytes.
  target.fill(3);
  EXPECT_EQ(target.difference(), "");
  EXPECT_EQ(nvlink_transfer_test(id, nullptr), NVLINK_TRANSFER_INVALID_VALUE);
}

/// The memory belongs to the caller again only when no piece is on its GPU.
TEST_F(NvlinkBegun, CanceledItIsNotOverBeforeItsPiecesAre) {
  const FakeCuda fake = FakeCuda::find();
  if (!fake) GTEST_SKIP() << "needs the simulated driver";
  constexpr std::uint64_t kLarge = 256 * kMiB;
  const GpuMemory large(nullptr, 0, 1, kLarge), target(nullptr, 1, 2, kLarge);
  const std::uint64_t id = begun({large.at(0), target.at(0), kLarge});
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  std::uint64_t done = 0;
  while (done == 0 && !limit.passed())
    ASSERT_EQ(nvlink_transfer_test(id, &done), NVLINK_TRANSFER_NOT_READY);
  FakeCudaHold held(fake, 0);
  EXPECT_EQ(nvlink_transfer_cancel(id), 0);
  EXPECT_EQ(nvlink_transfer_wait(id, 50), NVLINK_TRANSFER_NOT_READY);
  held.release();
  EXPECT_EQ(nvlink_transfer_wait(id, kLongMs), NVLINK_TRANSFER_CANCELED);
}

TEST_F(NvlinkBegun, ProgressGrowsToTheWhole) {
  const std::uint64_t bytes = (simulated() ? 128 : 1024) * kMiB + 5;
  const GpuMemory large(nullptr, 0, 1, bytes), target(&lender(), 1, 2, bytes);
  const std::uint64_t id = begun({large.at(0), target.at(0), bytes});
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  std::uint64_t seen = 0, done = 0;
  int code = NVLINK_TRANSFER_NOT_READY;
  while (code == NVLINK_TRANSFER_NOT_READY && !limit.passed()) {
    code = nvlink_transfer_test(id, &done);
    ASSERT_LE(seen, done);
    ASSERT_LE(done, bytes);
    seen = done;
  }
  EXPECT_EQ(code, 0) << nvlink_transfer_last_error();
  EXPECT_EQ(done, bytes);
  EXPECT_EQ(target.difference({{0, 1, 0, bytes}}), "");
}

TEST_F(NvlinkBegun, OneOfManyWaitersIsTold) {
  constexpr int kWaiters = 8;
  HeldStream held;
  held.hold();
  whole.stream = held.order().handle;
  const std::uint64_t id = begun(whole);
  std::atomic<int> told{0}, unknown{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kWaiters; ++i)
      threads.emplace_back([&] {
        const int code = nvlink_transfer_wait(id, kLongMs);
        told += code == 0 ? 1 : 0;
        unknown += code == NVLINK_TRANSFER_INVALID_VALUE ? 1 : 0;
      });
    EXPECT_EQ(nvlink_transfer_wait(id, 20), NVLINK_TRANSFER_NOT_READY);
    held.go_on();
  }
  EXPECT_EQ(told, 1);
  EXPECT_EQ(unknown, kWaiters - 1);
}

/// More transfers than run at once. Some wait for a blocked stream, and the others do not wait for
/// them.
TEST_F(NvlinkBegun, ManyAtOnceEachFindsItsBytes) {
  constexpr std::uint64_t kMany = 60, kSlice = 65521, kHeld = 5;
  const cuda::CUstream streams[] = {stream(0), stream(0), stream(0)};
  HeldStream held;
  held.hold();
  std::vector<std::uint64_t> ids;
  std::vector<Expected> expected;
  for (std::uint64_t i = 0; i < kMany; ++i) {
    const std::uint64_t source = (kMany - 1 - i) * kSlice, target = i * kSlice;
    ids.push_back(begun({from->at(source), to->at(target), kSlice,
                         i < kHeld ? held.order().handle : streams[i % std::size(streams)]}));
    expected.push_back({target, 1, source, kSlice});
  }
  for (std::uint64_t i = kMany; i-- > kHeld;)
    EXPECT_EQ(nvlink_transfer_wait(ids[i], 5000), 0) << i << ": " << nvlink_transfer_last_error();
  for (std::uint64_t i = 0; i < kHeld; ++i)
    EXPECT_EQ(nvlink_transfer_test(ids[i], nullptr), NVLINK_TRANSFER_NOT_READY) << i;
  held.go_on();
  for (std::uint64_t i = 0; i < kHeld; ++i)
    EXPECT_EQ(nvlink_transfer_wait(ids[i], kLongMs), 0)
        << i << ": " << nvlink_transfer_last_error();
  stays(expected);
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end()) << "a number was given twice";
}

}  // namespace begun_test
}  // namespace linkspan::test
