// Registry: host memory that it allocates or pins.
#include "base/no_memory.hpp"
#include "cuda/topology.hpp"
#include "memory/host_backing.hpp"
#include "memory/registry.hpp"

namespace linkspan::memory {

Result<std::shared_ptr<const Registration>> Registry::allocate_shared(std::uint64_t bytes,
                                                                      Permissions peers) {
  Result<std::unique_ptr<HostBacking>> fresh = HostBacking::make_shared_memory(bytes);
  if (!fresh.ok()) return fresh.status();
  // Shared with registrations inside it.
  const std::shared_ptr<HostBacking> backing = cuda::DeferredDestroyer::end_by(
      topology_ == nullptr ? nullptr : topology_->destroyer(), *std::move(fresh));
  Region::Facts facts;
  facts.kind = MemoryKind::shared;
  facts.peers = peers;
  facts.address = facts.allocation = backing->address();
  facts.bytes = bytes;
  facts.allocation_bytes = backing->bytes();
  facts.memfd = backing->memfd();
  Result<std::shared_ptr<const Registration>> made = insert(facts, backing);
  if (!made.ok()) return made;
  // The memory is pinned after the insertion, so that either this or pin_shared() pins it for a GPU
  // that becomes active meanwhile.
  const Status pinned = base::or_no_memory([&] {
    const Result<const cuda::Device*> device = device_to_pin(false);
    return device.ok() && *device != nullptr ? backing->pin(**device) : device.status();
  });
  if (!pinned.ok()) {
    if (Status removed = remove((*made)->id()); !removed.ok()) return removed;
    return pinned;
  }
  return made;
}

Status Registry::pin_shared() {
  const Result<const cuda::Device*> device = device_to_pin(false);
  if (!device.ok() || *device == nullptr) return device.status();
  Status first;
  for (const auto& registration : all()) {
    HostBacking* backing = registration->backing_.get();
    if (backing == nullptr || !backing->shared()) continue;
    Status status = backing->pin(**device);
    if (first.ok()) first = std::move(status);
  }
  return first;
}

std::shared_ptr<const Registration> Registry::find_shared(std::uint64_t address,
                                                          std::uint64_t bytes) const {
  const base::MutexLock lock(mutex_);
  for (const auto& [serial, registration] : backed_) {
    const Region::Facts& facts = registration->region().facts();
    const bool open = facts.peers.read && facts.peers.write && !facts.peers.exclusive;
    if (facts.kind == MemoryKind::shared && open &&
        fits(address - facts.address, bytes, facts.bytes))
      return registration;
  }
  return nullptr;
}

std::shared_ptr<HostBacking> Registry::backing_of(std::uint64_t address) const {
  const base::MutexLock lock(mutex_);
  for (const auto& [serial, registration] : backed_) {
    const auto& backing = registration->backing_;
    if (address - backing->address() < backing->bytes()) return backing;
  }
  return nullptr;
}

/// Returns a GPU to pin with, or null if none is active. A pin is valid for all GPUs, so any GPU
/// suffices.
Result<const cuda::Device*> Registry::device_to_pin(bool bring_up) const {
  if (topology_ == nullptr) return nullptr;
  if (const auto active = topology_->all_active(); !active.empty()) return active.front();
  if (!bring_up || topology_->devices().empty()) return nullptr;
  return topology_->activate(topology_->devices().front().uuid);
}

}  // namespace linkspan::memory
