// transport/local/published_regions.hpp - the regions of this side that peers may import.
//
// On the path of a byte: only find(), for a copy that a peer has asked for.
// Threads: PublishedRegion: any thread for `uses`; the rest is immutable. PublishedRegions:
// externally synchronised (LocalTransport::mutex_).
// Invariants: a region is in the RegionLivenessTable from add() to retract(). Once retract()
// returned OK no peer maps it and no Endpoint of this side uses it for a peer.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "cuda/topology.hpp"
#include "memory/registry.hpp"
#include "transport/local/key.hpp"
#include "transport/local/region_liveness.hpp"

namespace linkspan::transport::local {

class LocalEndpoint;

/// One published region.
struct PublishedRegion : std::enable_shared_from_this<PublishedRegion> {
  LocalKey key;
  const memory::Region* region = nullptr;
  std::shared_ptr<const memory::Registration> registration;  ///< Or null. Other owner: registry.
  std::shared_ptr<const base::Fd> liveness_fd;  ///< Other owners: the table and other regions.
  std::atomic<std::uint32_t> uses{0};           ///< Copies that run here for peers.

  /// Returns true if a GPU can read and write it by DMA.
  bool dma() const noexcept {
    if (key.kind == MemoryKind::shared) return registration != nullptr && registration->pinned();
    return key.kind == MemoryKind::device || key.kind == MemoryKind::pinned;
  }
  /// Returns the key and what travels with it. `topology` is null without a GPU and outlives the
  /// key.
  memory::PublishedKey published_key(const cuda::Topology* topology) const;
};

class PublishedRegions {
 public:
  using Endpoints = std::set<LocalEndpoint*>;

  explicit PublishedRegions(std::unique_ptr<RegionLivenessTable> liveness)
      : liveness_(std::move(liveness)) {}

  /// Adds a region, sets its place in the table and returns its key. no_resource: the table is
  /// full.
  Result<memory::PublishedKey> add(std::shared_ptr<PublishedRegion> region,
                                   const cuda::Topology* topology);
  /// Returns null if the region is not published or retracted.
  std::shared_ptr<PublishedRegion> find(std::uint64_t serial) const;
  /// As Transport::retract(). `peers` get a message.
  Status retract(std::uint64_t serial, bool revoke_immediately, const Endpoints& peers);
  Status forget(std::uint64_t serial);  ///< As Transport::forget().
  /// Records that the peer no longer maps our region; `serial` 0: none of our regions.
  void acknowledge(const LocalEndpoint& peer, std::uint64_t serial);

 private:
  struct PublishedEntry {
    std::shared_ptr<PublishedRegion> published;  // other owners: Endpoints that execute on it
    bool retracting = false, revoke_immediately = false;
    bool told = false;  // the peers, or those that count: `unacknowledged`
    std::set<const LocalEndpoint*> unacknowledged;
  };

  Status erase_unused(std::map<std::uint64_t, PublishedEntry>::iterator entry);

  std::unique_ptr<RegionLivenessTable> liveness_;
  std::map<std::uint64_t, PublishedEntry> entries_;  // by serial
};

}  // namespace linkspan::transport::local
