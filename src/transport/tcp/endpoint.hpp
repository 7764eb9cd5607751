// transport/tcp/endpoint.hpp - one peer by TCP: what the TransferScheduler sees of a
// ConnectionGroup.
//
// On the path of a byte: post() checks the batch and gives it to the wire, whose connections'
// threads do the rest; progress() looks whether its BatchResult has ended.
// Threads: under the scheduler's lock.
// Invariants: the side that has connected to the other makes the data connections, a few at once,
// and asks again, ever more rarely, for those of the first that were refused. A peer without any
// when the deadline of connect() has passed is dropped with the reason. A wire that fails is not
// mended: the peer has to be met again and is given up a second later. A batch that was canceled
// ends within kCancelEnds: then the wire fails, whatever else the peer sends or takes; sooner when
// the peer is silent.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>

#include "transport/tcp/address.hpp"
#include "transport/tcp/connection_group.hpp"
#include "transport/tcp/tcp_transport.hpp"

namespace linkspan::transport::tcp {

class TcpEndpoint final : public Endpoint, public DataConnectionSink {
 public:
  /// From one try for a data connection to the next: the first, doubled each time up to the last.
  static constexpr Duration kFirstPause = std::chrono::milliseconds(100),
                            kLastPause = std::chrono::seconds(5);
  /// Tries for more than the one or few that there are.
  static constexpr unsigned kTries = 10;
  /// By that later than the side that connects, which knows the reason, the other drops a peer.
  static constexpr Duration kDropsLater = std::chrono::seconds(5);
  /// Of a batch since its cancel: in silence, and in all.
  static constexpr Duration kSilence = std::chrono::seconds(5),
                            kCancelEnds = std::chrono::seconds(10);

  TcpEndpoint(TcpTransport& transport, const Address& peer, Channel& channel,
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
  /// close() of the Engine waits for what is in flight and not for what is looked at later.
  void stop_serving() override { leaving_ = true; }
  void close() override;
  void peer_terminated() override;
  Status on_data_connection(Result<base::AuthenticatedSocket> socket) override;
  bool drained() const override { return disconnected_ && group_->is_closed(); }

 private:
  struct InflightBatch {
    std::uint64_t id = 0, cookie = 0;
    FrameType type = FrameType::put;
    const WireMapping* remote = nullptr;
    std::shared_ptr<BatchResult> result;   // of a batch that is also the wire's
    std::optional<base::Time> canceled{};  // since then
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
  void cancel(InflightBatch& inflight);
  void check_canceled(base::Time now);
  void check_failure(base::Time now);

  TcpTransport& transport_;
  const Address peer_;
  Channel& channel_;
  const base::Deadline connect_by_;
  const std::shared_ptr<ConnectionGroup> group_;  // also its connections'
  const base::Deadline drop_at_;                  // the peer, without a data connection
  bool closed_ = false, disconnected_ = false, leaving_ = false;
  unsigned awaited_ = 0, connections_ = 0;  // of the first those that are asked for; that have come
  // Of the first that were refused: why, when they are asked for again, how often they were.
  Status refusal_;
  std::optional<base::Time> ask_again_at_;
  unsigned asked_again_ = 0;
  std::string tls_ = "TLS";  // how they are encrypted, if they are
  std::uint64_t last_id_ = 0;
  std::list<InflightBatch> batches_;
  // While one of them is canceled: when that was looked at, bytes to and from the peer, and since
  // when it has been as many.
  std::uint64_t traffic_ = 0;
  base::Time silent_since_{}, check_traffic_at_{};
  base::Time check_served_at_{};
  std::optional<base::Time> give_up_at_;  // the peer, since its wire has failed; max: done
};

}  // namespace linkspan::transport::tcp
