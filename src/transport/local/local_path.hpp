// transport/local/local_path.hpp - which GPU copies between two regions, through which address.
//
// On the path of a byte: post() reads it in the place of look-ups, each with a lock of its own.
// Threads: externally synchronised (SharedCopiers::mutex).
// Invariants: true while SharedCopiers has the same epoch, which ends when a GPU comes up, or when
// a region or a mapping ends.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/topology.hpp"
#include "transport/local/route.hpp"

namespace linkspan::transport::local {

struct GpuCopiers;
struct PublishedRegion;

struct LocalPath {
  std::uint64_t epoch = 0;               ///< When it was found; 0: never.
  std::weak_ptr<PublishedRegion> local;  ///< The region of this side.
  Mapped mapped = Mapped::nothing;
  /// The GPU that copies. Null: neither memory is a GPU's, or no GPU here reaches it.
  const cuda::Device* device = nullptr;
  const GpuCopiers* copiers = nullptr;  ///< Those of `device`. Null: it is not up.
  std::uint64_t remote_address = 0;     ///< For `device`, if the remote memory is a GPU's.
};

}  // namespace linkspan::transport::local
