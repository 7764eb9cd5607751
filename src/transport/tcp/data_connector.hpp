// transport/tcp/data_connector.hpp - makes the data connections to a peer: a few at first, and
// refused ones again at growing intervals.
//
// Threads: under its peer's mutex.
// Invariants: only the side that has connected requests connections. A peer without any at the
// deadline is dropped with the reason.
#pragma once

#include <optional>

#include "base/clock.hpp"
#include "transport/channel.hpp"
#include "transport/tcp/connection_group.hpp"

namespace linkspan::transport::tcp {

class DataConnector {
 public:
  /// Delay between attempts at a data connection: the first, doubled each time up to the last.
  static constexpr Duration kFirstPause = std::chrono::milliseconds(100),
                            kLastPause = std::chrono::seconds(5);
  /// Attempts at further connections once one exists.
  static constexpr unsigned kTries = 10;
  /// Extra delay before the side that does not connect drops the peer; the side that connects knows
  /// the reason.
  static constexpr Duration kDropsLater = std::chrono::seconds(5);

  /// `channel`, `group` and `clock` outlive it. Requests the `first` connections if this side
  /// connects.
  DataConnector(Channel& channel, ConnectionGroup& group, unsigned first, base::Deadline deadline,
                const base::Clock& clock);

  unsigned connections() const noexcept { return connections_; }  ///< Established.
  /// Returns true if no connection was made in time.
  bool is_overdue() const { return connections_ == 0 && connect_by_.passed(); }
  Status timeout() const;
  void on_connected() noexcept;
  /// Schedules another attempt if it was one of the first connections; further ones are optional.
  void on_refused(const Status& why, base::Time now);
  /// Retries refused data connections; fails the group if it has none at its deadline.
  void retry(base::Time now);
  /// Returns when retry() has to be called; max: only after another call.
  base::Time next_retry(base::Time now) const;

 private:
  Channel& channel_;
  ConnectionGroup& group_;
  const unsigned first_;
  const base::Deadline connect_by_;
  const base::Deadline drop_at_;            // deadline of a peer without a data connection
  unsigned awaited_ = 0, connections_ = 0;  // requested of the first connections; established
  Status refusal_;                          // the reason of the last one
  std::optional<base::Time> ask_again_at_;
  unsigned asked_again_ = 0;
};

}  // namespace linkspan::transport::tcp
