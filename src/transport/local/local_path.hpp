// transport/local/local_path.hpp - which GPU copies between two regions, through which address.
//
// On the path of a byte: post() reads it in the place of look-ups, each with a lock of its own, and
// of several objects of each of the many pairs that share a launch.
// Threads: externally synchronised (SharedCopiers::mutex).
// Invariants: true while SharedCopiers has the same epoch, which ends when a GPU comes up, or when
// a region or a mapping ends.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/topology.hpp"
#include "memory/region.hpp"
#include "transport/local/region_liveness.hpp"
#include "transport/local/route.hpp"

namespace linkspan::transport::local {

struct GpuCopiers;
struct PublishedRegion;

/// Holds all that a route depends on besides the shape. Pairs with equal kinds can share a launch.
struct PathKind {
  Mapped mapped = Mapped::nothing;
  MemoryKind local = MemoryKind::host, remote = MemoryKind::host;
  bool local_dma = false, remote_dma = false;  ///< A GPU can read and write the memory.
  GpuUuid local_gpu{}, remote_gpu{};
  /// The GPU that copies. Null: neither memory is a GPU's, or no GPU here reaches it.
  const cuda::Device* device = nullptr;

  /// Returns whether both memories are a CPU's, mapped here, and no access to them can fail.
  bool sealed() const noexcept {
    return local == MemoryKind::shared && remote == MemoryKind::shared && mapped != Mapped::nothing;
  }
  friend bool operator==(const PathKind&, const PathKind&) = default;
};

struct LocalPath {
  std::uint64_t epoch = 0;                 ///< When it was found; 0: never.
  const memory::Region* region = nullptr;  ///< Of this side; only compared.
  PathKind kind;
  const GpuCopiers* copiers = nullptr;  ///< Those of `kind.device`. Null: it is not up.
  /// Where the regions begin for a copier of this process; 0: it does not reach the peer's.
  std::uint64_t local_address = 0, remote_address = 0;
  LivenessEntry liveness;        ///< Of the peer's region.
  std::uint64_t owner = 0;       ///< The incarnation of the peer's Engine.
  Permissions permissions = {};  ///< What the peer permits.
  std::weak_ptr<PublishedRegion> local;
};

}  // namespace linkspan::transport::local
