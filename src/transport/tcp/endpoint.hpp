// transport/tcp/endpoint.hpp - the Endpoint of one peer over TCP: what the PeerScheduler sees
// of a ConnectionGroup.
//
// On the path of a byte: post() checks the batch and submits it to the group; the connections'
// threads do the rest; progress() checks its BatchResult.
// Threads: under its peer's mutex.
// Invariants: a failed group is not repaired: the peer is given up a second later and must be
// connected again.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "transport/tcp/address.hpp"
#include "transport/tcp/connection_group.hpp"
#include "transport/tcp/data_connector.hpp"
#include "transport/tcp/inflight_batches.hpp"
#include "transport/tcp/tcp_transport.hpp"

namespace linkspan::transport::tcp {

class TcpEndpoint final : public Endpoint {
 public:
  TcpEndpoint(TcpTransport& transport, const TcpTransportAddress& peer, Channel& channel,
              base::Deadline deadline);
  TcpEndpoint(const TcpEndpoint&) = delete;
  TcpEndpoint& operator=(const TcpEndpoint&) = delete;
  ~TcpEndpoint() override;

  Result<Posted> post(const Batch& batch) override;
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
  base::Time now() const noexcept { return transport_.options().clock->now(); }
  Status ready() const;
  unsigned max_connections() const noexcept;
  unsigned first_connections() const noexcept;
  bool carries_notification(const Batch& batch) const;
  void check_failure(base::Time now);

  TcpTransport& transport_;
  const TcpTransportAddress peer_;
  Channel& channel_;
  const std::shared_ptr<ConnectionGroup> group_;  // shared with its connections
  DataConnector connector_;
  bool closed_ = false, disconnected_ = false, leaving_ = false;
  std::string tls_ = "TLS";  // name of the encryption, if there is one
  TcpInflightBatches batches_;
  base::Time check_served_at_{};
  std::optional<base::Time> give_up_at_;  // when the peer is given up after a failure; max: done
};

}  // namespace linkspan::transport::tcp
