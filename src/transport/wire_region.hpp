// transport/wire_region.hpp - regions that peers reach over a wire: their keys, and who uses them.
//
// A wire maps nothing: a peer names a region by its serial and a token, and its owner looks both
// up at each request. So a key is dead at once when its region is retracted, and the region itself
// is borrowed back when its last use has ended.
// Threads: any thread, but what is marked.
// Invariants: who has a region's token may ask for it from add() to retract(); once retract()
// answered OK nothing of the transport knows its memory.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
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
/// Whoever guesses learns nothing from how long it takes.
bool equal_constant_time(const Token& ours, const Token& theirs) noexcept;

/// What travels about a region, decoded.
struct WireKey {
  memory::RegionId id;
  MemoryKind kind = MemoryKind::host;
  Permissions peers;
  std::uint64_t bytes = 0;
  GpuUuid gpu{};  ///< Zero: host memory.
  Token token{};
};

std::vector<std::byte> encode(const WireKey& key);
Result<WireKey> decode_key(std::span<const std::byte> bytes);  ///< Else `corrupt`.

/// A region of a peer's.
class WireMapping final : public Mapping {
 public:
  /// As Transport::import_key(), whole.
  static Result<std::unique_ptr<Mapping>> import(const RemoteKey& key, base::Deadline deadline);
  explicit WireMapping(const WireKey& key) : key_(key) {}
  std::uint64_t bytes() const noexcept override { return key_.bytes; }
  Permissions permissions() const noexcept override { return key_.peers; }
  bool alive() const noexcept override { return alive_; }

  const WireKey& key() const noexcept { return key_; }
  void mark_dead() const noexcept { alive_ = false; }  ///< Its owner has answered so.

 private:
  const WireKey key_;
  mutable std::atomic<bool> alive_{true};
};

/// One published region.
/// Threads: the counts any thread; the rest is immutable.
struct WireRegion {
  WireKey key;
  std::uint64_t address = 0;
  const memory::Region* region = nullptr;       ///< Its owner's: a name, not to be followed.
  const cuda::Device* device = nullptr;         ///< Null: host memory.
  std::atomic<std::uint32_t> uses{0};           ///< By batches, ours and peers'.
  std::atomic<std::uint32_t> registrations{0};  ///< With what the wire is owned of.
  std::atomic<bool> retracted{false};           ///< Registrations are to be borrowed back.
  std::atomic<bool> revoke_immediately{false};  ///< Retracted so: what peers do there is ended.
  /// The region that this is a part of, which stays as long; null: it is a whole one. Also the
  /// table's.
  std::shared_ptr<WireRegion> whole = nullptr;

  WireRegion() = default;
  WireRegion(const WireRegion&) = delete;
  WireRegion& operator=(const WireRegion&) = delete;
  ~WireRegion() {
    if (whole != nullptr) --whole->uses;
  }
};
/// The one that wires register with what they are owned of: a part is used within its whole.
inline const std::shared_ptr<WireRegion>& registered_as(const std::shared_ptr<WireRegion>& memory) {
  return memory->whole != nullptr ? memory->whole : memory;
}

/// Of a region by a batch: until its end the region is not borrowed back.
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
  const std::shared_ptr<WireRegion>& memory() const noexcept { return memory_; }  ///< Null: none.

 private:
  std::shared_ptr<WireRegion> memory_;  // also the table's
};

class WireRegionTable;

/// A batch that a wire may send.
struct WireBatch {
  RegionUse use;  ///< Of the memory here.
  const WireMapping* remote = nullptr;
  CheckedShape checked;  ///< Of blocks alone.
};
/// What every wire asks before: errors as Endpoint::post(). `peer`: the incarnation there.
Result<WireBatch> wire_batch(const Batch& batch, WireRegionTable& published, std::uint64_t peer,
                             const Capabilities& limits);

class WireRegionTable {
 public:
  /// `topology` outlives it; null: no GPU here.
  explicit WireRegionTable(cuda::Topology* topology) : topology_(topology) {}

  /// OFF THE LOCK. As Transport::publish() of memory that the transport takes.
  Result<memory::PublishedKey> add(const memory::Region& region) LINKSPAN_EXCLUDES(mutex_);
  /// As Transport::retract(). busy: in use, or registered.
  Status retract(const memory::Region& region, bool revoke_immediately = false)
      LINKSPAN_EXCLUDES(mutex_);
  /// Of none, if there is none or it was retracted.
  RegionUse use(std::uint64_t serial) LINKSPAN_EXCLUDES(mutex_);

 private:
  cuda::Topology* const topology_;
  base::Mutex mutex_;
  // By serial; also the batches'.
  std::map<std::uint64_t, std::shared_ptr<WireRegion>> all_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::transport
