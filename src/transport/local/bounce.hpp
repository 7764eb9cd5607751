// transport/local/bounce.hpp - memory of ours through which bytes go to and from a peer where
// neither side can map the other's.
//
// Each Endpoint has its own, so that no peer sees what goes to another one: shared memory, locked
// for the GPUs that are up, and where both ends are GPU memory some of our end's GPU, so that both
// hops stay on the links between GPUs. A peer costs at most 16 MiB of the host and 32 MiB of each
// GPU. It is a region as any other, offered to the peer with the first batch that needs it; nobody
// finds it by name, and its permissions let nobody ask us to copy to or from it.
// Threads: create() and the end OFF THE LOCK (milliseconds), acquire() and release() under the
// scheduler's lock; the rest is immutable.
// Invariants: a chunk is out from acquire() to release(), which is when nothing touches it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cuda/memory.hpp"
#include "transport/local/local_transport.hpp"

namespace linkspan::transport::local {

class BounceMemory {
 public:
  /// Of that GPU, which is up; null: of the host.
  static Result<std::unique_ptr<BounceMemory>> create(LocalTransport& transport,
                                                      const cuda::Device* device);
  BounceMemory(const BounceMemory&) = delete;
  BounceMemory& operator=(const BounceMemory&) = delete;
  ~BounceMemory();

  std::optional<unsigned> acquire();  ///< Nothing: all are in use.
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
  std::shared_ptr<cuda::DeviceBuffer> gpu_memory_;  // also of what ends it; null: of the host
  std::shared_ptr<const memory::Registration> registration_;  // also the registry's
  std::shared_ptr<PublishedRegion> published_;                // also the transport's
  std::vector<unsigned> free_;
};

}  // namespace linkspan::transport::local
