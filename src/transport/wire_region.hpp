// transport/wire_region.hpp - regions that peers reach over a wire: their keys and their uses.
//
// A wire maps nothing: a peer names a region by serial and token, and the owner looks both up at
// each request. So retract() invalidates a key at once, and the region is released when its last
// use ends.
// On the path of a byte: a wire's first check of a batch, and the check of each peer's request.
// Threads: any thread, except as marked.
// Invariants: a peer with a region's token may ask for it from add() to retract(). Once retract()
// returned OK the transport has no reference to the memory.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "cuda/topology.hpp"
#include "linkspan/status.hpp"
#include "memory/region.hpp"
#include "transport/batch.hpp"
#include "transport/transport.hpp"

namespace linkspan::transport {

using Token = std::array<std::byte, 16>;
/// Compares in constant time, so that a guesser learns nothing from the duration.
bool equal_constant_time(const Token& ours, const Token& theirs) noexcept;

/// The decoded key of a region.
struct WireKey {
  memory::RegionId id;
  MemoryKind kind = MemoryKind::host;
  Permissions peers;
  std::uint64_t bytes = 0;
  GpuUuid gpu{};                                            ///< Zero: host memory.
  std::optional<cuda::NvlinkFabric> fabric = std::nullopt;  ///< Of the GPU.
  Token token{};
};

std::vector<std::byte> encode(const WireKey& key);
/// Decodes a peer's bytes; malformed ones are `corrupt`.
Result<WireKey> decode_key(std::span<const std::byte> bytes);

/// A peer's region, known by its key.
class WireMapping final : public Mapping {
 public:
  /// Implements Transport::import_key().
  static Result<std::unique_ptr<Mapping>> import(const RemoteKey& key, base::Deadline deadline);
  explicit WireMapping(const WireKey& key) : key_(key) {}
  std::uint64_t bytes() const noexcept override { return key_.bytes; }
  Permissions permissions() const noexcept override { return key_.peers; }
  bool alive() const noexcept override { return alive_; }

  const WireKey& key() const noexcept { return key_; }
  void mark_dead() const noexcept { alive_ = false; }  ///< Its owner answered `unreachable`.

 private:
  const WireKey key_;
  mutable std::atomic<bool> alive_{true};
};

/// One published region.
/// Threads: any thread for the atomics; the rest is immutable.
struct WireRegion {
  WireKey key;
  std::uint64_t address = 0;
  const memory::Region* region = nullptr;  ///< Identifies the owner's object; never dereferenced.
  const cuda::Device* device = nullptr;    ///< Null: host memory.
  std::atomic<std::uint32_t> uses{0};      ///< Batches of this side and of peers.
  std::atomic<std::uint32_t> registrations{0};  ///< With the wire's devices.
  std::atomic<bool> retracted{false};           ///< The registrations have to be released.
  std::atomic<bool> revoke_immediately{false};  ///< Peers' batches on it are ended.
  /// The region that this one is a part of, and keeps. Null: it is no part. The other owner is the
  /// table.
  std::shared_ptr<WireRegion> whole = nullptr;

  WireRegion() = default;
  WireRegion(const WireRegion&) = delete;
  WireRegion& operator=(const WireRegion&) = delete;
  ~WireRegion() {
    if (whole != nullptr) --whole->uses;
  }
};
/// Returns the region that wires register with their devices: for a part, the one it lies in.
inline const std::shared_ptr<WireRegion>& registered_as(const std::shared_ptr<WireRegion>& memory) {
  return memory->whole != nullptr ? memory->whole : memory;
}

/// Counts one use of a region by a batch; the region is not released before it ends.
class RegionUse {
 public:
  RegionUse() = default;
  explicit RegionUse(std::shared_ptr<WireRegion> memory) : memory_(std::move(memory)) {
    ++memory_->uses;
  }
  RegionUse(RegionUse&& other) noexcept : memory_(std::move(other.memory_)) {}
  RegionUse& operator=(RegionUse&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  RegionUse(const RegionUse&) = delete;
  RegionUse& operator=(const RegionUse&) = delete;
  ~RegionUse() {
    if (memory_ != nullptr) --memory_->uses;
  }
  /// Returns null if this is a use of no region.
  const std::shared_ptr<WireRegion>& memory() const noexcept { return memory_; }

 private:
  std::shared_ptr<WireRegion> memory_;  // the other owner is the table
};

class WireRegionTable;

/// A batch that a wire may send.
struct WireBatch {
  RegionUse use;  ///< Keeps the local memory.
  const WireMapping* remote = nullptr;
  CheckedShape checked;  ///< Blocks, unless it was asked to keep pages.
};
/// Does the checks of Endpoint::post() that all wires share, with its errors. `peer`: the peer's
/// incarnation. `keeps_pages`: pages stay pages, for a wire that makes its own list of them.
Result<WireBatch> wire_batch(const Batch& batch, WireRegionTable& published, std::uint64_t peer,
                             const Capabilities& limits, bool keeps_pages = false);

class WireRegionTable {
 public:
  /// `topology` outlives it; null: no GPU here.
  explicit WireRegionTable(cuda::Topology* topology) : topology_(topology) {}

  /// OFF THE LOCK. Implements Transport::publish() for a kind of memory that the transport
  /// supports.
  Result<memory::PublishedKey> add(const memory::Region& region) LINKSPAN_EXCLUDES(mutex_);
  /// Implements Transport::retract(). busy: in use, or still registered with the wire.
  Status retract(const memory::Region& region, bool revoke_immediately = false)
      LINKSPAN_EXCLUDES(mutex_);
  /// Returns a use of the region; an empty one if it is unknown or retracted.
  RegionUse use(std::uint64_t serial) LINKSPAN_EXCLUDES(mutex_);
  /// Returns the better paths between a region here and a peer's that are not taken, and why.
  std::vector<PathRefusal> refused(const memory::Region& local, const Mapping& remote) const;

 private:
  cuda::Topology* const topology_;
  base::Mutex mutex_;
  // By serial. The other owners are batches.
  std::map<std::uint64_t, std::shared_ptr<WireRegion>> all_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::transport
