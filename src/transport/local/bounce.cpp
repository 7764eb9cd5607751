#include "transport/local/bounce.hpp"

#include <utility>

namespace linkspan::transport::local {

BounceMemory::BounceMemory(LocalTransport& transport, std::uint64_t chunk_bytes)
    : transport_(transport), chunk_bytes_(chunk_bytes) {
  for (unsigned chunk = 0; chunk < kBounceChunks; ++chunk) free_.push_back(chunk);
}

Result<std::unique_ptr<BounceMemory>> BounceMemory::create(LocalTransport& transport,
                                                           const cuda::Device* device) {
  memory::Registry& registry = *transport.registry();
  std::unique_ptr<BounceMemory> made(
      new BounceMemory(transport, device == nullptr ? kHostChunk : kGpuChunk));
  const std::uint64_t bytes = kBounceChunks * made->chunk_bytes_;
  if (device == nullptr) {
    auto shared = registry.allocate_shared(bytes, {});
    if (!shared.ok()) return shared.status();
    made->registration_ = *std::move(shared);
  } else {
    auto scope = device->enter();
    if (!scope.ok()) return scope.status();
    auto buffer = cuda::DeviceBuffer::create(*scope, bytes);
    if (!buffer.ok()) return buffer.status();
    // Freeing the memory waits for blocked streams (docs/cuda_notes.md, "calls that
    // synchronise").
    made->gpu_memory_ =
        cuda::DeferredDestroyer::end_by(transport.topology()->destroyer(),
                                        std::make_unique<cuda::DeviceBuffer>(*std::move(buffer)));
    void* const data =
        reinterpret_cast<void*>(made->gpu_memory_->address());  // NOLINT(performance-no-int-to-ptr)
    auto added = registry.add(data, bytes, {}, false);
    if (!added.ok()) return added.status();
    made->registration_ = *std::move(added);
  }
  const memory::Region& region = made->registration_->region();
  if (auto key = transport.publish(region); !key.ok()) return key.status();
  made->published_ = transport.published(region.facts().id.serial);
  if (!made->published().key.handle.mappable())
    return Status(Code::unsupported, Scope::transport, made->published().key.handle.why_none);
  return made;
}

BounceMemory::~BounceMemory() {
  if (registration_ == nullptr) return;
  (void)transport_.forget(registration_->region());
  (void)transport_.registry()->remove(registration_->id());
}

std::optional<unsigned> BounceMemory::acquire() {
  if (free_.empty()) return std::nullopt;
  const unsigned chunk = free_.back();
  free_.pop_back();
  return chunk;
}

}  // namespace linkspan::transport::local
