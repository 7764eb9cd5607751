// transport/local/bounce.hpp - memory of this side that both sides can map, for batches between
// two memories that neither side can map.
//
// On the path of a byte: between the two phases of a bounce step (endpoint_bounce.cpp).
// Each Endpoint has its own, so that no peer sees another peer's bytes: shared memory, pinned for
// the GPUs that are up; and if both ends are GPU memory, memory of our end's GPU, so that both
// phases stay on the links between GPUs. A peer costs at most 16 MiB of the host and 32 MiB of each
// GPU. The memory is an ordinary region, offered to the peer with the first batch that needs it. It
// has no name, and no permission to make this side copy to or from it.
// Threads: create() and the destructor OFF THE LOCK (milliseconds); acquire() and release() under
// the transport's mutex; the rest is immutable.
// Invariants: nothing touches a chunk that is not acquired.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cuda/memory.hpp"
#include "transport/local/local_transport.hpp"

namespace linkspan::transport::local {

class BounceMemory {
 public:
  /// Allocates memory of `device`, which is up, or of the host if null. Publishes it as a region.
  static Result<std::unique_ptr<BounceMemory>> create(LocalTransport& transport,
                                                      const cuda::Device* device);
  BounceMemory(const BounceMemory&) = delete;
  BounceMemory& operator=(const BounceMemory&) = delete;
  ~BounceMemory();

  std::optional<unsigned> acquire();  ///< Returns nothing if all chunks are in use.
  void release(unsigned chunk) { free_.push_back(chunk); }
  bool has_room() const noexcept { return !free_.empty(); }
  std::uint64_t chunk_bytes() const noexcept { return chunk_bytes_; }
  std::uint64_t offset(unsigned chunk) const noexcept { return chunk * chunk_bytes_; }
  std::uint64_t address(unsigned chunk) const noexcept {
    return published_->region->facts().address + offset(chunk);
  }
  const PublishedRegion& published() const noexcept { return *published_; }

 private:
  BounceMemory(LocalTransport& transport, std::uint64_t chunk_bytes);

  LocalTransport& transport_;
  const std::uint64_t chunk_bytes_;
  std::shared_ptr<cuda::DeviceBuffer> gpu_memory_;  // the other owner frees it; null: host memory
  std::shared_ptr<const memory::Registration> registration_;  // the other owner is the registry
  std::shared_ptr<PublishedRegion> published_;                // the other owner is the transport
  std::vector<unsigned> free_;
};

}  // namespace linkspan::transport::local
