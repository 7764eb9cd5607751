#include "transport/local/mapping.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "base/sealed_memory.hpp"

namespace linkspan::transport::local {

Result<std::unique_ptr<HostMapping>> HostMapping::map(const base::Fd& memfd, std::uint64_t needed,
                                                      ImportBudget::Share share) {
  const auto facts = base::sealed_memory(memfd);
  if (!facts.ok()) return facts.status();
  const std::uint64_t bytes = facts->bytes;
  if (bytes < needed)
    return Status(Code::corrupt, Scope::request,
                  "the key claims " + std::to_string(needed) + " bytes of a memfd that has " +
                      std::to_string(bytes));
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd.get(), 0);
  if (at == MAP_FAILED) return base::Fd::from("mmap", -1).status();
  return std::unique_ptr<HostMapping>(
      new HostMapping(reinterpret_cast<std::uintptr_t>(at), bytes, std::move(share)));
}

HostMapping::~HostMapping() {
  {
    const base::MutexLock lock(mutex_);
    registration_.reset();  // unpinned before the pages are unmapped
  }
  ::munmap(reinterpret_cast<void*>(base_), bytes_);  // NOLINT(performance-no-int-to-ptr)
}

Status HostMapping::pin(const cuda::Device& device) {
  const base::MutexLock lock(mutex_);
  if (pinned()) return {};
  auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto made = cuda::HostRegistration::create(*scope, reinterpret_cast<void*>(base_),
                                             bytes_);  // NOLINT(performance-no-int-to-ptr)
  if (made.ok())
    registration_ = *std::move(made);
  else if (made.status().code() != Code::busy)  // busy: another Engine of this process did it
    return made.status();
  pinned_.store(true, std::memory_order_release);
  return {};
}

Mapped mapped_by(const LocalKey& key) noexcept {
  if (key.handle.ipc) return Mapped::cuda_ipc;
  if (key.handle.chunks) return Mapped::cuda_vmm;
  if (key.handle.pool) return Mapped::cuda_pool;
  return key.handle.memfd ? Mapped::memfd : Mapped::nothing;
}

Mapped ImportedMemory::mapped() const {
  if (key_.kind == MemoryKind::device) {
    const base::MutexLock lock(mutex_);
    if (views_.empty()) return Mapped::nothing;
    return same_process_ ? Mapped::same_process : mapped_by(key_);
  }
  if (host_address_ == 0) return Mapped::nothing;
  return same_process_ ? Mapped::same_process : Mapped::memfd;
}

std::string ImportedMemory::why_not_mapped() const {
  const base::MutexLock lock(mutex_);
  return why_not_.empty() ? key_.handle.why_none : why_not_;
}

bool ImportedMemory::host_dma() const noexcept {
  if (host_address_ == 0) return false;
  return (same_process_ && key_.kind == MemoryKind::pinned) ||
         (host_ != nullptr && host_->pinned());
}

std::optional<ImportedMemory::DeviceView> ImportedMemory::view(
    const cuda::Device* preferred) const {
  const base::MutexLock lock(mutex_);
  for (const DeviceView& view : views_)
    if (view.device == preferred) return view;
  if (views_.empty()) return std::nullopt;
  return views_.front();
}

void ImportedMemory::use_same_process() {
  same_process_ = true;
  if (key_.kind != MemoryKind::device) host_address_ = key_.address;
}

void ImportedMemory::use_host(std::shared_ptr<HostMapping> host) {
  host_address_ = host->base() + key_.allocation_offset;
  host_ = std::move(host);
}

void ImportedMemory::use_range(std::shared_ptr<cuda::SharedRange> range) {
  const base::MutexLock lock(mutex_);
  range_ = std::move(range);
}

std::shared_ptr<cuda::SharedRange> ImportedMemory::range() const {
  const base::MutexLock lock(mutex_);
  return range_;
}

std::pair<std::vector<ImportedMemory::DeviceView>, std::shared_ptr<cuda::SharedRange>>
ImportedMemory::unmap() {
  const base::MutexLock lock(mutex_);
  unmapped_ = true;
  why_not_ = "its owner has taken the memory back";
  return {std::exchange(views_, {}), std::exchange(range_, nullptr)};
}

void ImportedMemory::add_view(DeviceView view) {
  const base::MutexLock lock(mutex_);
  if (unmapped_) return;
  // The GPU of the memory goes first: from host memory its own PCIe link is the shortest.
  const bool owner = view.device->info().uuid == key_.gpu;
  views_.insert(owner ? views_.begin() : views_.end(), std::move(view));
}

bool ImportedMemory::wants_view(const cuda::Device& device) const {
  if (key_.kind != MemoryKind::device || !mappable()) return false;
  const base::MutexLock lock(mutex_);
  return !unmapped_ && std::none_of(views_.begin(), views_.end(),
                                    [&](const DeviceView& view) { return view.device == &device; });
}

void ImportedMemory::refuse(std::string why) {
  const base::MutexLock lock(mutex_);
  why_not_ = std::move(why);
}

}  // namespace linkspan::transport::local
