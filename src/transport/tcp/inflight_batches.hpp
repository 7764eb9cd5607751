// transport/tcp/inflight_batches.hpp - the batches of a TcpEndpoint that have not ended.
//
// Threads: under its peer's mutex.
// Invariants: a canceled batch ends within kCancelEnds, sooner if the peer is silent: then the
// group fails.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string_view>

#include "base/clock.hpp"
#include "transport/tcp/connection_group.hpp"

namespace linkspan::transport::tcp {

struct TcpInflightBatch {
  bool has_ended() const noexcept { return batch->result.ended.load(std::memory_order_acquire); }

  std::uint64_t cookie = 0;
  const WireMapping* remote = nullptr;
  std::shared_ptr<TcpBatch> batch;       // also the group's
  std::optional<base::Time> canceled{};  // when it was canceled
};

class TcpInflightBatches {
 public:
  /// Bounds of a canceled batch: without traffic, and in all.
  static constexpr Duration kSilence = std::chrono::seconds(5),
                            kCancelEnds = std::chrono::seconds(10);

  /// `group` outlives it.
  explicit TcpInflightBatches(ConnectionGroup& group) : group_(group) {}

  std::uint64_t next_id() noexcept { return ++last_id_; }
  std::size_t size() const noexcept { return all_.size(); }
  bool any_ended() const;
  /// Appends what was posted. Cannot fail, because the group has it already.
  void add(std::list<TcpInflightBatch>& posted) noexcept { all_.splice(all_.end(), posted); }
  /// Cancels the batches of that cookie; none: all.
  void cancel(std::optional<std::uint64_t> cookie, base::Time now);
  /// Fails the group if a canceled batch does not end in time. Traffic alone proves nothing about
  /// this batch: the peer may send other bytes, or one of several connections may be blocked.
  /// Closing the connections fences what they still hold.
  void check_canceled(base::Time now, std::string_view peer_name);
  /// Reports the batches that have ended, and returns how many.
  std::size_t complete(CompletionSink& sink);

 private:
  ConnectionGroup& group_;
  std::uint64_t last_id_ = 0;
  std::list<TcpInflightBatch> all_;
  // While a batch is canceled: bytes exchanged with the peer at the last check, since when that
  // number is unchanged, time of the next check.
  std::uint64_t traffic_ = 0;
  base::Time silent_since_{}, check_at_{};
};

}  // namespace linkspan::transport::tcp
