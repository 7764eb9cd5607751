#include "transport/local/pinned_slots.hpp"

namespace linkspan::transport::local {

Result<std::unique_ptr<PinnedSlots>> PinnedSlots::create(cuda::Topology& topology,
                                                         const cuda::Device& device) {
  const auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto memory = cuda::PinnedBuffer::create(*scope, kSlots * kSlotBatchBytes);
  if (!memory.ok()) return memory.status();
  // Freeing it waits for work in flight on the GPU.
  return std::unique_ptr<PinnedSlots>(new PinnedSlots(cuda::DeferredDestroyer::end_by(
      topology.destroyer(), std::make_unique<cuda::PinnedBuffer>(*std::move(memory)))));
}

PinnedSlots::Acquired PinnedSlots::acquire() noexcept {
  unsigned index = 0;
  while (used_.test(index)) ++index;
  used_.set(index);
  return Acquired(*this, index);
}

}  // namespace linkspan::transport::local
