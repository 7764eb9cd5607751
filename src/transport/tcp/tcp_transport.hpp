// transport/tcp/tcp_transport.hpp - the transport over TCP: several data connections to each peer.
//
// Host memory is sent from its place, GPU memory through pinned staging buffers. The Channel
// connects and authenticates the data connections. Each belongs to one thread of this transport;
// batches are spread over them by chunks (connection_group.hpp).
// Threads: as transport.hpp says; what Endpoints call is marked.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "copy/staging.hpp"
#include "transport/tcp/data_connection_thread.hpp"
#include "transport/transport.hpp"
#include "transport/wire_region.hpp"

namespace linkspan::transport::tcp {

struct TcpOptions {
  cuda::Topology* topology = nullptr;  ///< Null: no GPU.
  std::uint64_t incarnation = 0;       ///< This Engine's.
  unsigned connections = 1;            ///< To a peer, and threads, at most.
  /// Connections made when a peer is met; more follow while they pay off
  /// (data_connection_count.hpp). Two, so that a small message need not wait for a frame of a large
  /// one.
  unsigned first = 2;
  std::optional<unsigned> copy_ctas{};  ///< As in the local transport.
  bool tls = false;                     ///< Data connections use TLS.
  /// Time without progress after which a data connection ends that has bytes for the peer, and a
  /// put of the peer's; the latter is at least ServedTransfers::kMaxStall.
  Duration max_stall = std::chrono::seconds(10);
  /// Clock of an Endpoint's bounds; outlives the transport.
  const base::Clock* clock = &base::Clock::steady();
};

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(const TcpOptions& options);

  std::string_view name() const noexcept override { return "tcp"; }
  const Capabilities& capabilities() const noexcept override { return capabilities_; }
  Result<memory::PublishedKey> publish(const memory::Region& region) override;
  Status retract(const memory::Region& region, bool at_once) override {
    return published_.retract(region, at_once);
  }
  Status forget(const memory::Region& region) override { return published_.retract(region); }
  Result<std::unique_ptr<Mapping>> import_key(RemoteKey key, base::Deadline deadline) override {
    return WireMapping::import(key, deadline);
  }
  std::vector<CopyCount> copies() const override;
  std::vector<std::byte> address() const override;
  Result<std::unique_ptr<Endpoint>> connect(std::span<const std::byte> address, Channel& channel,
                                            base::Deadline deadline) override;

  // Any thread, for Endpoints:
  WireRegionTable& published() noexcept { return published_; }
  DataConnectionThreads& threads() noexcept { return threads_; }
  copy::StagingStreams& staging_streams() noexcept { return staging_streams_; }
  const TcpOptions& options() const noexcept { return options_; }
  void count(std::size_t blocks) noexcept {
    ++orders_;
    blocks_ += blocks;
  }

 private:
  const TcpOptions options_;
  Capabilities capabilities_;
  std::atomic<std::uint64_t> orders_{0}, blocks_{0};
  WireRegionTable published_;
  copy::StagingStreams staging_streams_;
  DataConnectionThreads threads_;  // last member: its connections use all of the above
};

}  // namespace linkspan::transport::tcp
