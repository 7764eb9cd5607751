// linkspan/peer.hpp - a connected remote Engine.
//
// Threads: any thread. A handle may be copied and may outlive the peer and the Engine; calls then
// answer `disconnected` or `canceled`.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "linkspan/region.hpp"
#include "linkspan/transfer.hpp"

namespace linkspan {

/// up: works. lost: its connection has ended, its process may live; nothing new is started.
/// gone: its process has ended or it said goodbye; nothing of it touches memory any more.
enum class PeerState : std::uint8_t { up, lost, gone };

class LINKSPAN_API Peer {
 public:
  Peer() = default;  ///< None.
  bool valid() const noexcept { return core_ != nullptr; }
  std::uint64_t id() const noexcept { return id_; }  ///< Unique in this Engine, from 1.
  std::string name() const;                          ///< As the peer's EngineOptions say.
  PeerState state() const;

  /// Imports the region that the peer published under `name`: 5-10 ms for memory of another GPU.
  /// not_found: no such name there. corrupt: its key opens nothing here, which also happens when
  /// the peer dies meanwhile. timed_out, disconnected.
  Result<RemoteRegion> lookup(std::string_view name,
                              Duration timeout = std::chrono::seconds(10)) const;

  /// Copies blocks between a region here and one of the peer's; returns when it is under way or
  /// queued. The lists are read during the call only. invalid_argument: a block leaves its region
  /// (the text names it), the remote region is another peer's. permission_denied. unreachable: no
  /// path (the text names each). no_resource: 16,384 are queued for this peer; nothing was started.
  Result<Transfer> write(const Region& local, const RemoteRegion& remote,
                         std::span<const Block> blocks, const TransferOptions& options = {}) const;
  Result<Transfer> read(const Region& local, const RemoteRegion& remote,
                        std::span<const Block> blocks, const TransferOptions& options = {}) const;
  /// The same for blocks of one size at page indices.
  Result<Transfer> write(const Region& local, const RemoteRegion& remote, const Pages& pages,
                         const TransferOptions& options = {}) const;
  Result<Transfer> read(const Region& local, const RemoteRegion& remote, const Pages& pages,
                        const TransferOptions& options = {}) const;

  /// A message to the peer's Engine::notifications(), at most 64 KiB.
  Status notify(std::span<const std::byte> message) const;

  /// Which way `blocks` blocks of together `bytes` bytes would take, and why not a better one.
  Result<Explanation> explain(Op op, const Region& local, const RemoteRegion& remote,
                              std::uint64_t blocks, std::uint64_t bytes) const;

 private:
  friend class engine::Core;
  Peer(std::shared_ptr<engine::Core> core, std::uint64_t id);

  std::shared_ptr<engine::Core> core_;  // also the Engine's and other handles'
  std::uint64_t id_ = 0;
};

}  // namespace linkspan
