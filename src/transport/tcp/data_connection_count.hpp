// transport/tcp/data_connection_count.hpp - how many connections to a peer pay, by the rate that
// they reach.
//
// One is fed with what a wire sees. A window is 32 MiB that have moved, both ways together, and
// 5 ms in which something was in flight. At the end of the first the number is doubled; from then
// on it is doubled when one of three windows since the last doubling shows 10 % more: others take
// their share at any time, and too few connections cost more than too many. When none does, or a
// connection could not be made, the number stays for a second of work, then one doubling is tried
// again, for other load may have gone; each time in vain the pause is twice as long. What new
// connections move at first fills the buffers of their sockets: their first window does not count.
// Threads: externally synchronised.
// Invariants: never more than `most`; time in which nothing was in flight counts nowhere.
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

  /// `first` have been asked for.
  DataConnectionCount(unsigned first, unsigned most) : wanted_(first), most_(most) {}

  /// From now on something is in flight, or nothing.
  void work(base::Time now, bool busy) noexcept;
  /// Something was in flight for kLook since the last poll().
  bool is_due() const noexcept { return unseen_ >= kUpdateInterval; }
  /// How many there should be. `bytes`: that have moved, ever; `connections`: that have come.
  unsigned update(std::uint64_t bytes, unsigned connections) noexcept;
  /// One that was asked for.
  void on_connection_refused() noexcept;

  unsigned wanted() const noexcept { return wanted_; }
  bool may_grow() const noexcept { return wanted_ < most_; }

 private:
  void begin_window(std::uint64_t bytes) noexcept;
  void rest() noexcept;

  unsigned wanted_, came_ = 0;
  const unsigned most_;
  bool busy_ = false;
  bool fresh_ = false;            // the window is the first with new connections
  base::Time seen_{};             // until then time is counted
  Duration unseen_{}, window_{};  // of work, since the last look and in the window
  std::uint64_t from_ = 0;        // bytes before the window
  std::optional<double> rate_;    // before the last doubling, while it is on trial
  unsigned in_vain_ = 0;          // windows of that trial
  Duration rested_{}, pause_{};   // of work
};

}  // namespace linkspan::transport::tcp
