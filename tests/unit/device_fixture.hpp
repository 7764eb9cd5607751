// tests/unit/device_fixture.hpp - two sides of a window in this process, for the device headers
// compiled for the host: a thread is a lane, and a kernel of one.
//
// Threads: a Side's memory as the primitives under test allow it; all else is for one thread.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "linkspan/device/packet.cuh"
#include "tests/support/pattern.hpp"

namespace linkspan::device {

constexpr std::uint64_t kSecond = 1'000'000'000, kLong = 20 * kSecond;
constexpr std::uint64_t kGuard = 64;  // bytes before and after regions and pads

inline unsigned char* raw(std::byte* at) { return reinterpret_cast<unsigned char*>(at); }

/// Memory between guards, 64-byte aligned.
class Guarded {
 public:
  explicit Guarded(std::uint64_t bytes) : memory_(kGuard + bytes + kGuard + 64), bytes_(bytes) {
    test::put_pattern(all(), kGuardSeed, 0);
  }
  std::byte* data() { return start() + kGuard; }
  std::uint64_t bytes() const { return bytes_; }
  std::span<std::byte> inside() { return {data(), bytes_}; }
  /// Fills the inside with the pattern of `seed`. The constructor fills the guards with another
  /// one.
  void fill(std::uint64_t seed) { test::put_pattern(inside(), seed, 0); }
  void clear() { std::memset(data(), 0, bytes_); }
  /// Returns an empty text if the guards are unchanged.
  std::string guards() {
    return test::first_difference(all(), kGuardSeed, kGuard, {}, std::vector{whole()});
  }
  /// Does the same for all bytes except the expected ones.
  std::string difference(std::uint64_t seed, std::span<const test::Expected> expected) {
    if (std::string wrong = guards(); !wrong.empty()) return "guards: " + wrong;
    return test::first_difference(inside(), seed, 0, expected);
  }

 private:
  static constexpr std::uint64_t kGuardSeed = 99;
  std::byte* start() {
    return memory_.data() + (0 - reinterpret_cast<std::uintptr_t>(memory_.data())) % 64;
  }
  std::span<std::byte> all() { return {start(), kGuard + bytes_ + kGuard}; }
  test::Extent whole() const { return {0, bytes_}; }

  std::vector<std::byte> memory_;
  std::uint64_t bytes_;
};

struct Side {
  Side(const PadLayout& layout, std::uint64_t bytes) : region(bytes), pad(layout.bytes()) {
    pad.clear();
  }
  Guarded region, pad;
  std::uint32_t abort = 0;
};

/// Returns the window that code of `mine` uses.
inline Window window_of(Side& mine, Side& theirs, const PadLayout& layout) {
  Window window;
  window.remote = raw(theirs.region.data());
  window.remote_bytes = theirs.region.bytes();
  window.local = raw(mine.region.data());
  window.local_bytes = mine.region.bytes();
  window.remote_pad = raw(theirs.pad.data());
  window.local_pad = raw(mine.pad.data());
  window.layout = layout;
  window.atomics = 1;
  window.abort = &mine.abort;
  return window;
}

struct WindowPair {
  WindowPair(const PadLayout& layout, std::uint64_t bytes)
      : a(layout, bytes),
        b(layout, bytes),
        from_a(window_of(a, b, layout)),
        from_b(window_of(b, a, layout)) {}
  WindowPair(const WindowPair&) = delete;
  WindowPair& operator=(const WindowPair&) = delete;
  ~WindowPair() {
    for (Guarded* each : {&a.region, &a.pad, &b.region, &b.pad}) EXPECT_EQ(each->guards(), "");
  }

  Side a, b;
  Window from_a, from_b;
};

/// `bytes` bytes of `seed`, the first of them at an address that is `apart` modulo 16.
class Source {
 public:
  Source(std::uint64_t seed, std::uint64_t bytes, std::uint64_t apart = 0)
      : memory_(bytes + 32), bytes_(bytes) {
    at_ = (0 - reinterpret_cast<std::uintptr_t>(memory_.data())) % 16 + apart;
    test::put_pattern({data(), bytes_}, seed, 0);
  }
  std::byte* data() { return memory_.data() + at_; }
  std::string difference(std::uint64_t seed) {
    return test::first_difference({data(), bytes_}, seed, 0, {});
  }

 private:
  std::vector<std::byte> memory_;
  std::uint64_t bytes_, at_ = 0;
};

/// Sometimes gives other threads time, so that either side is the later one.
class Dawdle {
 public:
  explicit Dawdle(unsigned seed) : random_(seed) {}
  void operator()() {
    const unsigned drawn = static_cast<unsigned>(random_()) % 64;
    for (volatile unsigned spin = 0; drawn < 8 && spin < drawn * 500;) spin = spin + 1;
  }

 private:
  std::minstd_rand random_;
};

}  // namespace linkspan::device
