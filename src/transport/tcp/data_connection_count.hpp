// transport/tcp/data_connection_count.hpp - decides how many data connections to a peer pay off, by
// the rate they reach.
//
// A window is 32 MiB moved in both directions together and 5 ms with something in flight. The
// number is doubled after the first window, and again whenever one of the three windows after a
// doubling shows 10 % more: other load takes its share at any time, and too few connections cost
// more than too many. If none does, or a connection was refused, the number stays for a second of
// work; then one doubling is tried again, and each failed trial doubles the pause. The first window
// with new connections does not count, because it fills their socket buffers.
// Threads: externally synchronised.
// Invariants: never more than `most`; time with nothing in flight does not count.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.hpp"

namespace linkspan::transport::tcp {

class DataConnectionCount {
 public:
  static constexpr std::uint64_t kWindowBytes = std::uint64_t{32} << 20;
  static constexpr Duration kWindowTime = std::chrono::milliseconds(5);
  static constexpr Duration kUpdateInterval = std::chrono::milliseconds(2);
  static constexpr Duration kPause = std::chrono::seconds(1);
  static constexpr double kGain = 1.1;
  static constexpr unsigned kWindows = 3;

  /// Starts with `first` connections that were requested.
  DataConnectionCount(unsigned first, unsigned most) : wanted_(first), most_(most) {}

  /// Records that from now on something is in flight, or nothing.
  void work(base::Time now, bool busy) noexcept;
  bool is_busy() const noexcept { return busy_; }
  /// Returns true if something was in flight for kUpdateInterval since the last update().
  bool is_due() const noexcept { return unseen_ >= kUpdateInterval; }
  /// Returns how many connections there should be. `bytes`: moved in all; `connections`:
  /// established.
  unsigned update(std::uint64_t bytes, unsigned connections) noexcept;
  /// Records that a requested connection was refused.
  void on_connection_refused() noexcept;

  unsigned wanted() const noexcept { return wanted_; }
  bool may_grow() const noexcept { return wanted_ < most_; }

 private:
  /// Measures the rate since its begin.
  struct RateWindow {
    std::uint64_t from = 0;  // bytes before it
    Duration time{};         // work in it
    bool is_over(std::uint64_t bytes) const noexcept {
      return bytes - from >= kWindowBytes && time >= kWindowTime;
    }
    double rate(std::uint64_t bytes) const noexcept {
      return static_cast<double>(bytes - from) / static_cast<double>(time.count());
    }
  };
  void rest() noexcept;

  unsigned wanted_, came_ = 0;
  const unsigned most_;
  bool busy_ = false;
  bool fresh_ = false;  // the window is the first with new connections
  RateWindow window_;
  base::Time seen_{};            // time is counted up to here
  Duration unseen_{};            // work since the last update
  std::optional<double> rate_;   // rate before the last doubling, while it is on trial
  unsigned in_vain_ = 0;         // windows of that trial without a gain
  Duration rested_{}, pause_{};  // time of work
};

}  // namespace linkspan::transport::tcp
