// transport/tcp/endpoint.hpp - the Endpoint of one peer over TCP: what the PeerScheduler sees
// of a ConnectionGroup.
//
// On the path of a byte: post() checks the batch and submits it to the group; the connections'
// threads do the rest; progress() checks its BatchResult.
// Threads: under its peer's mutex.
// Invariants: the side that has connected makes the data connections, a few at first, and retries
// refused ones at growing intervals. A peer without any at the deadline of connect() is dropped
// with the reason. A failed group is not repaired: the peer is given up a second later and must be
// connected again. A canceled batch ends within kCancelEnds, sooner if the peer is silent: then the
// group fails.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>

#include "transport/tcp/address.hpp"
#include "transport/tcp/connection_group.hpp"
#include "transport/tcp/tcp_transport.hpp"

namespace linkspan::transport::tcp {

class TcpEndpoint final : public Endpoint {
 public:
  /// Delay between attempts at a data connection: the first, doubled each time up to the last.
  static constexpr Duration kFirstPause = std::chrono::milliseconds(100),
                            kLastPause = std::chrono::seconds(5);
  /// Attempts at further connections once one exists.
  static constexpr unsigned kTries = 10;
  /// Extra delay before the side that does not connect drops the peer; the side that connects knows
  /// the reason.
  static constexpr Duration kDropsLater = std::chrono::seconds(5);
  /// Bounds of a canceled batch: without traffic, and in all.
  static constexpr Duration kSilence = std::chrono::seconds(5),
                            kCancelEnds = std::chrono::seconds(10);

  TcpEndpoint(TcpTransport& transport, const TcpTransportAddress& peer, Channel& channel,
              base::Deadline deadline);
  TcpEndpoint(const TcpEndpoint&) = delete;
  TcpEndpoint& operator=(const TcpEndpoint&) = delete;
  ~TcpEndpoint() override;

  Status post(const Batch& batch) override;
  void cancel(std::uint64_t cookie) override;
  std::size_t progress(CompletionSink& sink) override;
  PollHint poll_hint() const override;
  Explanation explain(linkspan::Op op, const memory::Region& local, const Mapping& remote,
                      BatchSummary shape) const override;
  std::string describe_paths() const override;
  Status on_message(std::uint16_t op, std::span<const std::byte> bytes,
                    std::span<base::Fd> fds) override;
  std::vector<Served> served() const override { return group_->served(now()); }
  /// Stops later checks from delaying Engine::close(), which waits only for what is in flight.
  void stop_serving() override { leaving_ = true; }
  void close() override;
  void peer_terminated() override;
  Status on_data_connection(Result<base::AuthenticatedSocket> socket) override;
  bool drained() const override { return disconnected_ && group_->is_closed(); }

 private:
  struct TcpInflightBatch {
    std::uint64_t id = 0, cookie = 0;
    FrameType type = FrameType::put;
    const WireMapping* remote = nullptr;
    std::shared_ptr<BatchResult> result;   // part of a batch shared with the group
    std::optional<base::Time> canceled{};  // when it was canceled
  };

  base::Time now() const noexcept { return transport_.options().clock->now(); }
  Status ready() const;
  bool connect_is_overdue() const;
  void refused(const Status& why);
  void retry_refused(base::Time now);
  unsigned max_connections() const noexcept;
  unsigned first_connections() const noexcept;
  bool carries_notification(const Batch& batch, const std::vector<Extent>& extents) const;
  Status connect_timeout() const;
  void cancel(TcpInflightBatch& inflight);
  void check_canceled(base::Time now);
  void check_failure(base::Time now);

  TcpTransport& transport_;
  const TcpTransportAddress peer_;
  Channel& channel_;
  const base::Deadline connect_by_;
  const std::shared_ptr<ConnectionGroup> group_;  // shared with its connections
  const base::Deadline drop_at_;                  // deadline of a peer without a data connection
  bool closed_ = false, disconnected_ = false, leaving_ = false;
  unsigned awaited_ = 0, connections_ = 0;  // requested of the first connections; established
  // Refused connections: the reason, the time of the next attempt, the number of attempts.
  Status refusal_;
  std::optional<base::Time> ask_again_at_;
  unsigned asked_again_ = 0;
  std::string tls_ = "TLS";  // name of the encryption, if there is one
  std::uint64_t last_id_ = 0;
  std::list<TcpInflightBatch> batches_;
  // While a batch is canceled: bytes exchanged with the peer at the last check, since when that
  // number is unchanged, time of the next check.
  std::uint64_t traffic_ = 0;
  base::Time silent_since_{}, check_traffic_at_{};
  base::Time check_served_at_{};
  std::optional<base::Time> give_up_at_;  // when the peer is given up after a failure; max: done
};

}  // namespace linkspan::transport::tcp
