// Tests proxy.cuh on the host: kernels are threads, and the test takes what they queue, like
// engine/windows/window.cpp.
#include "linkspan/device/proxy.cuh"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "tests/unit/device_stream.hpp"

namespace linkspan::device {
namespace device_proxy_test {

using detail::load_acquire;
using detail::store_release;

constexpr std::uint64_t kPatience = 2'000'000;

/// A Window that is not mapped, and its queue as the Engine sees it.
class Proxy {
 public:
  Proxy(Window window, std::uint64_t capacity, std::uint64_t patience)
      : entries_(capacity + 1), window_(window) {
    window_.remote = window_.remote_pad = nullptr;
    window_.atomics = 0;
    window_.proxy = {entries_.data(), state(), &tickets_, capacity, patience};
  }
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  const Window& window() const { return window_; }

  /// Returns the next entry when it is there. It belongs to the kernels again after the next tell()
  /// that passes it.
  const ProxyEntry* poll() {
    ProxyEntry& entry = entries_[taken_ % window_.proxy.capacity];
    return load_acquire(&entry.number) == taken_ + 1 ? &entry : nullptr;
  }
  void take() { ++taken_; }
  void finish() { done_ = taken_; }
  void fail() { failed_ = 1; }
  void tell() {
    store_release(state() + kProxyDone, done_);
    store_release(state() + kProxyTaken, taken_);
    store_release(state() + kProxyFailed, failed_);
  }
  std::uint64_t taken() const { return taken_; }
  std::uint64_t tickets() { return std::atomic_ref(tickets_).load(); }

 private:
  std::uint64_t* state() { return reinterpret_cast<std::uint64_t*>(entries_.data() + capacity()); }
  std::uint64_t capacity() const { return entries_.size() - 1; }

  std::vector<ProxyEntry> entries_;  // the state follows the last entry
  Window window_;
  alignas(64) std::uint64_t tickets_ = 0;
  std::uint64_t taken_ = 0, done_ = 0, failed_ = 0;
};

class DeviceProxy : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 1 << 16;

  Proxy& open(std::uint64_t capacity, std::uint64_t patience = kPatience) {
    return proxy_.emplace(pair_.from_a, capacity, patience);
  }
  /// Queues `count` signals.
  void fill(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i)
      ASSERT_EQ(signal_add(proxy_->window(), 1, i + 1), Outcome::ok) << i;
  }

  WindowPair pair_{{.signals = 8}, kBytes};
  std::optional<Proxy> proxy_;
};

TEST_F(DeviceProxy, AnEntrySaysWhatWasAsked) {
  Proxy& proxy = open(4);
  const Window& window = proxy.window();
  auto* local = window.local;
  ASSERT_EQ(put<Scope::warp>(window, 70, local + 30, 11), Outcome::ok);
  ASSERT_EQ(get<Scope::block>(window, local + 300, 7000, 110), Outcome::ok);
  ASSERT_EQ(put_signal<Scope::thread>(window, kBytes, local + kBytes, 0, 7, 5), Outcome::ok);
  const auto expect = [&](ProxyOp op, std::uint64_t at, std::uint64_t remote, std::uint64_t bytes,
                          std::uint64_t value) {
    const ProxyEntry* entry = proxy.poll();
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->op, static_cast<std::uint64_t>(op));
    EXPECT_EQ(entry->local, at);
    EXPECT_EQ(entry->remote, remote);
    EXPECT_EQ(entry->bytes, bytes);
    EXPECT_EQ(entry->value, value);
    proxy.take();
  };
  expect(ProxyOp::put, 30, 70, 11, 0);
  expect(ProxyOp::get, 300, 7000, 110, 0);
  expect(ProxyOp::put, kBytes, kBytes, 0, 0);
  expect(ProxyOp::add, 0, 56, 8, 5);
  EXPECT_EQ(proxy.poll(), nullptr);
}

TEST_F(DeviceProxy, WhatIsOutOfRangeIsNotQueued) {
  Proxy& proxy = open(4);
  const Window& window = proxy.window();
  std::byte elsewhere[8];
  const Outcome refused[] = {
      put<Scope::warp>(window, 0, elsewhere, 8),  // not in the local region
      put<Scope::warp>(window, 0, window.local - 1, 8),
      put<Scope::warp>(window, 0, window.local + kBytes - 7, 8),
      put<Scope::warp>(window, kBytes - 7, window.local, 8),
      get<Scope::warp>(window, window.local + kBytes, 0, 1),
      put_signal<Scope::warp>(window, 0, elsewhere, 8, 0),
      put_signal<Scope::warp>(window, 0, window.local, 8, 8),
      signal_add(window, 8),
  };
  for (const Outcome each : refused) EXPECT_EQ(each, Outcome::out_of_range);
  EXPECT_EQ(proxy.tickets(), 0u);
}

// The words of a producer's part of the region say what it queued, and are written anew as soon as
// a flush has ended: a consumer that ran late would see them change.
TEST_F(DeviceProxy, ProducersKeepTheirOrderAndLeaveNoGap) {
  constexpr std::uint64_t kThreads = 4, kEach = 3000, kWords = 16;
  Proxy& proxy = open(8, kLong);
  std::vector<std::jthread> producers;
  for (std::uint64_t thread = 0; thread < kThreads; ++thread)
    producers.emplace_back([&, thread] {
      const Window& window = proxy.window();
      auto* words = reinterpret_cast<std::uint64_t*>(window.local) + thread * kWords;
      Dawdle dawdle(static_cast<unsigned>(thread));
      for (std::uint64_t i = 0; i < kEach; ++i) {
        words[i % kWords] = i;
        ASSERT_EQ(put<Scope::thread>(window, i, words + i % kWords, 8), Outcome::ok);
        if (i % kWords == kWords - 1) {
          ASSERT_EQ(flush<Scope::thread>(window, window.within(kLong)), Outcome::ok);
        }
        dawdle();
      }
    });
  std::uint64_t next[kThreads] = {}, took = 0;
  Dawdle dawdle(17);
  const std::uint64_t give_up = nanoseconds() + kLong;
  while (took < kThreads * kEach && nanoseconds() < give_up) {
    const ProxyEntry* entry = proxy.poll();
    if (entry == nullptr) {
      std::this_thread::yield();
      continue;
    }
    const std::uint64_t thread = entry->local / 8 / kWords;
    ASSERT_LT(thread, kThreads);
    EXPECT_EQ(entry->remote, next[thread]);
    std::uint64_t written = 0;
    std::memcpy(&written, pair_.a.region.data() + entry->local, 8);
    EXPECT_EQ(written, next[thread]++);
    proxy.take();
    proxy.finish();
    if (++took % 3 != 0 || proxy.poll() == nullptr) proxy.tell();  // late, as often as not
    dawdle();
  }
  producers.clear();
  EXPECT_EQ(took, kThreads * kEach);
  EXPECT_EQ(proxy.tickets(), took);
}

TEST_F(DeviceProxy, AFullQueueHoldsUpForItsPatienceAndLosesNothing) {
  constexpr std::uint64_t kCapacity = 5;
  Proxy& proxy = open(kCapacity);
  fill(kCapacity);
  std::uint64_t value = kCapacity;
  for (int round = 0; round < 12; ++round) {
    const std::uint64_t start = nanoseconds();
    EXPECT_EQ(signal_add(proxy.window(), 1, value + 1), Outcome::timed_out);
    EXPECT_GE(nanoseconds() - start, kPatience);
    EXPECT_EQ(proxy.tickets(), value) << "who gives up has taken no number";
    ASSERT_NE(proxy.poll(), nullptr);
    EXPECT_EQ(proxy.poll()->value, value - kCapacity + 1);
    proxy.take();
    proxy.tell();
    ASSERT_EQ(signal_add(proxy.window(), 1, ++value), Outcome::ok);
  }
  for (std::uint64_t left = value - kCapacity + 1; left <= value; ++left, proxy.take()) {
    ASSERT_NE(proxy.poll(), nullptr);
    EXPECT_EQ(proxy.poll()->value, left);
  }
  EXPECT_EQ(proxy.poll(), nullptr);
}

TEST_F(DeviceProxy, BehindAFailureAllFails) {
  Proxy& proxy = open(4);
  const Window& window = proxy.window();
  fill(4);
  proxy.fail();
  proxy.tell();
  const Bound brief = window.within(0);
  EXPECT_EQ(put<Scope::block>(window, 0, window.local, 8), Outcome::failed);
  EXPECT_EQ(get<Scope::warp>(window, window.local, 0, 8), Outcome::failed);
  EXPECT_EQ(put_signal<Scope::warp>(window, 0, window.local, 8, 0), Outcome::failed);
  EXPECT_EQ(signal_add(window, 0), Outcome::failed);
  EXPECT_EQ(flush<Scope::warp>(window, brief), Outcome::failed);
  EXPECT_EQ(proxy.tickets(), 4u);
}

TEST_F(DeviceProxy, AFlushWaitsForWhatWasQueuedBeforeAndForNoMore) {
  Proxy& proxy = open(8);
  const Window& window = proxy.window();
  const auto flushed = [&](std::uint64_t time) {
    return flush<Scope::warp>(window, window.within(time));
  };
  EXPECT_EQ(flushed(0), Outcome::ok) << "nothing was queued";
  fill(3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(flushed(1000), Outcome::timed_out) << i << " of 3 are applied";
    proxy.take();
    proxy.tell();
    EXPECT_EQ(flushed(1000), Outcome::timed_out) << "taken is not applied";
    proxy.finish();
    proxy.tell();
  }
  EXPECT_EQ(flushed(0), Outcome::ok);

  fill(1);
  std::atomic<bool> begun = false;
  std::jthread flusher([&] {
    begun = true;
    EXPECT_EQ(flushed(kLong), Outcome::ok);
  });
  while (!begun) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it has read how many there were
  fill(1);
  proxy.take();
  proxy.finish();
  proxy.tell();
  flusher.join();
  EXPECT_EQ(flushed(1000), Outcome::timed_out) << "the one behind is not";
}

TEST_F(DeviceProxy, TheAbortWordEndsItsWaits) {
  Proxy& proxy = open(2, kLong);
  const Window& window = proxy.window();
  fill(2);
  const std::jthread host([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic_ref(pair_.a.abort).store(1, std::memory_order_relaxed);
  });
  const std::uint64_t start = nanoseconds();
  EXPECT_EQ(signal_add(window, 0), Outcome::aborted);
  EXPECT_EQ(flush<Scope::block>(window, window.within(kLong)), Outcome::aborted);
  EXPECT_LT(nanoseconds() - start, 10 * kSecond);
  EXPECT_EQ(proxy.tickets(), 2u);
}

// The sender is not mapped and its host carries for it, the receiver's credit goes straight.
TEST_F(DeviceProxy, MessagesOfAllSizesByTheHost) {
  const Stream stream{.messages = 3000, .mailbox_bytes = 64, .seed = 5};
  WindowPair pair(stream.layout(1), Stream::region_bytes(1));
  Proxy proxy(pair.from_a, 8, kLong);
  const std::jthread sender([&] {
    const Window& window = proxy.window();
    for (std::uint64_t number = 1; number <= stream.messages; ++number) {
      const Stream::Message m = stream.landing(0, number);
      unsigned char* source = window.local + m.offset;
      test::put_pattern({reinterpret_cast<std::byte*>(source), m.bytes}, m.seed, 0);
      ASSERT_EQ(
          send<Scope::warp>(window, 0, number, m.offset, source, m.bytes, window.within(kLong)),
          Outcome::ok);
    }
    ASSERT_EQ(flush<Scope::warp>(window, window.within(kLong)), Outcome::ok);
  });
  const std::jthread host([&] {
    const std::uint64_t give_up = nanoseconds() + kLong;
    while (proxy.taken() < 2 * stream.messages && nanoseconds() < give_up) {
      const ProxyEntry* entry = proxy.poll();
      if (entry == nullptr) {
        std::this_thread::yield();
        continue;
      }
      if (entry->op == static_cast<std::uint64_t>(ProxyOp::put))
        std::memcpy(pair.b.region.data() + entry->remote, pair.a.region.data() + entry->local,
                    entry->bytes);
      else
        store_release(detail::word_at(raw(pair.b.pad.data()), entry->remote), entry->value);
      proxy.take();
      proxy.finish();
      proxy.tell();
    }
  });
  for (std::uint64_t number = 1; number <= stream.messages; ++number) {
    const Stream::Message m = stream.landing(0, number);
    ASSERT_EQ(
        receive<Scope::warp>(pair.from_b, 0, number, m.offset, m.bytes, pair.from_b.within(kLong)),
        Outcome::ok);
    const auto got = pair.b.region.inside().subspan(m.offset, m.bytes);
    ASSERT_EQ(test::first_difference(got, m.seed, 0, {}), "") << number << " of " << m.bytes;
  }
}

}  // namespace device_proxy_test
}  // namespace linkspan::device
