// base/clock.hpp - monotonic time, and the Deadline of each wait.
//
// Code below the API never asks the system for the time: it asks its Deadline, which asks its
// Clock. So a test of a timeout advances a FakeClock instead of sleeping. FakeClock does not reach
// threads that sleep in the kernel; those few places are tested with the system's clock. Threads:
// any thread. Invariants: time never goes back; a Deadline that has passed stays passed; none is
// infinite.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>

#include "linkspan/types.hpp"

namespace linkspan::base {

/// A point in time of this process. Peers are sent a Duration instead.
using Time = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time now() const noexcept = 0;

  /// Returns CLOCK_MONOTONIC, which stops while the machine is suspended (clock_gettime(2)).
  static const Clock& steady() noexcept {
    struct Steady final : Clock {
      Time now() const noexcept override { return std::chrono::steady_clock::now(); }
    };
    static const Steady clock;
    return clock;
  }
};

/// A clock for tests. Starts at zero and moves only by advance().
class FakeClock final : public Clock {
 public:
  Time now() const noexcept override { return Time(Duration(elapsed_.load())); }
  void advance(Duration by) noexcept { elapsed_ += std::max(by, Duration::zero()).count(); }

 private:
  std::atomic<Duration::rep> elapsed_{0};
};

/// A point in time by which a wait ends. Pass it down to callees: a callee that made its own from
/// the same timeout would extend the whole.
class Deadline {
 public:
  /// Returns the Deadline `wait` from now. Any `wait` is valid: a negative one has passed, a long
  /// one is capped at a century. So left() can be added to the time of any clock, as the standard
  /// library's waits do. `clock` outlives the Deadline.
  static Deadline after(const Clock& clock, Duration wait) noexcept {
    constexpr Duration kLongest = std::chrono::hours(24) * 365 * 100;
    return {clock, clock.now() + std::clamp(wait, Duration::zero(), kLongest)};
  }
  /// Does the same with the steady clock.
  static Deadline in(Duration wait) noexcept { return after(Clock::steady(), wait); }

  bool passed() const noexcept { return left() == Duration::zero(); }
  Duration left() const noexcept { return std::max(at_ - clock_->now(), Duration::zero()); }
  /// Returns the time left for poll(2), rounded up: rounded down, the last millisecond of each wait
  /// would be a busy loop.
  int left_ms() const noexcept {
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left()).count();
    return static_cast<int>(std::min<decltype(ms)>(ms, INT_MAX));
  }

 private:
  Deadline(const Clock& clock, Time at) noexcept : clock_(&clock), at_(at) {}

  const Clock* clock_;
  Time at_;
};

}  // namespace linkspan::base
