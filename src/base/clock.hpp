// base/clock.hpp - monotonic time, and the Deadline that every wait carries.
//
// Nothing below the API asks the system what time it is: it asks the Deadline that it was given,
// and that one asks its Clock. So the test of a timeout advances a FakeClock, does not sleep, and
// passes on a loaded machine. Only a thread that sleeps in the kernel is out of a FakeClock's
// reach; those few places are tested with the system's clock.
// Threads: any thread.
// Invariants: time never goes back; a Deadline that has passed stays passed; none is infinite.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>

#include "linkspan/types.hpp"

namespace linkspan::base {

/// Means something in this process only: what is sent to a peer is a Duration.
using Time = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time now() const noexcept = 0;

  /// CLOCK_MONOTONIC. It stands still while the machine is suspended (clock_gettime(2)).
  static const Clock& steady() noexcept {
    struct Steady final : Clock {
      Time now() const noexcept override { return std::chrono::steady_clock::now(); }
    };
    static const Steady clock;
    return clock;
  }
};

/// For tests: starts at zero and stands still until it is advanced.
class FakeClock final : public Clock {
 public:
  Time now() const noexcept override { return Time(Duration(elapsed_.load())); }
  void advance(Duration by) noexcept { elapsed_ += std::max(by, Duration::zero()).count(); }

 private:
  std::atomic<Duration::rep> elapsed_{0};
};

/// A moment by which a wait ends. Copy it down the calls: a step of a job that made its own
/// from the same timeout would stretch the job.
class Deadline {
 public:
  /// Any `wait` is safe: none is left if it is negative, and 292 years are as many as there are.
  /// `clock` outlives the Deadline.
  static Deadline after(const Clock& clock, Duration wait) noexcept {
    const Time now = clock.now();
    return {clock, now + std::clamp(wait, Duration::zero(), Time::max() - now)};
  }

  bool passed() const noexcept { return left() == Duration::zero(); }
  Duration left() const noexcept { return std::max(at_ - clock_->now(), Duration::zero()); }
  /// For poll(2). Rounded up: cut down, the last millisecond of every wait would be a busy loop.
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
