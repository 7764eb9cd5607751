// transport/local/mapping.hpp - a peer's region as this process reaches it.
//
// Made off the lock at import, by what the key brings: the same process (its address), a memfd
// (mmap, locked for the driver once a GPU is up), a CUDA IPC handle (opened on each GPU that is
// up), chunks or pool memory (mapped once, each GPU that is up let in). What cannot be mapped is a
// Mapping too: the peer executes, or the kernel copies by address.
// Threads: any thread. A view is added when another GPU comes up, and all end when the owner's
// memory goes away; the rest is immutable.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "cuda/handles.hpp"
#include "cuda/memory.hpp"
#include "cuda/topology.hpp"
#include "memory/import_cache.hpp"
#include "transport/local/import_budget.hpp"
#include "transport/local/key.hpp"
#include "transport/local/region_liveness.hpp"
#include "transport/local/route.hpp"
#include "transport/transport.hpp"

namespace linkspan::transport::local {

/// A peer's memfd in our address space.
class HostMapping {
 public:
  /// corrupt: smaller than `needed` bytes, or its owner could shrink it under our feet.
  static Result<std::unique_ptr<HostMapping>> map(const base::Fd& memfd, std::uint64_t needed,
                                                  ImportBudget::Share share);
  HostMapping(const HostMapping&) = delete;
  HostMapping& operator=(const HostMapping&) = delete;
  ~HostMapping();

  std::uint64_t base() const noexcept { return base_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  /// Locks the pages for every GPU of this process, once. Milliseconds.
  Status pin(const cuda::Device& device) LINKSPAN_EXCLUDES(mutex_);
  bool pinned() const noexcept { return pinned_.load(std::memory_order_acquire); }

 private:
  HostMapping(std::uint64_t base, std::uint64_t bytes, ImportBudget::Share share)
      : base_(base), bytes_(bytes), share_(std::move(share)) {}

  const std::uint64_t base_, bytes_;
  const ImportBudget::Share share_;  // of as many bytes
  std::atomic<bool> pinned_{false};
  base::Mutex mutex_;
  std::optional<cuda::HostRegistration> registration_ LINKSPAN_GUARDED_BY(mutex_);
};

class ImportedMemory {
 public:
  /// GPU memory as one device of ours sees it.
  struct DeviceView {
    const cuda::Device* device = nullptr;
    std::uint64_t address = 0;                 ///< Of the region's first byte.
    std::shared_ptr<cuda::IpcMapping> opened;  // also of other regions in the allocation. Or null.
  };

  ImportedMemory(LocalKey key, std::shared_ptr<RegionLivenessView> liveness)
      : key_(std::move(key)), liveness_(std::move(liveness)) {}

  const LocalKey& key() const noexcept { return key_; }
  bool alive() const noexcept { return liveness_->alive(key_.liveness_index, key_.id.serial); }

  Mapped mapped() const LINKSPAN_EXCLUDES(mutex_);
  std::string why_not_mapped() const LINKSPAN_EXCLUDES(mutex_);
  /// For a CPU of this process; 0: none.
  std::uint64_t host_address() const noexcept { return host_address_; }
  /// A GPU may read and write host_address().
  bool host_dma() const noexcept;
  /// The view of `preferred` if there is one, else any; nothing: no GPU of ours reaches it.
  std::optional<DeviceView> view(const cuda::Device* preferred) const LINKSPAN_EXCLUDES(mutex_);

  // While it is being made, and when a GPU comes up.
  void use_same_process();
  void use_host(std::shared_ptr<HostMapping> host);
  void use_range(std::shared_ptr<cuda::SharedRange> range) LINKSPAN_EXCLUDES(mutex_);
  void add_view(DeviceView view) LINKSPAN_EXCLUDES(mutex_);
  bool wants_view(const cuda::Device& device) const LINKSPAN_EXCLUDES(mutex_);
  void refuse(std::string why) LINKSPAN_EXCLUDES(mutex_);
  HostMapping* host() const noexcept { return host_.get(); }
  /// Chunks or pool memory: one mapping for all devices, each of which is let in. Null: other
  /// memory, or not mapped.
  std::shared_ptr<cuda::SharedRange> range() const LINKSPAN_EXCLUDES(mutex_);
  /// What maps GPU memory: it ends with the result, off the lock, and nothing is mapped from now
  /// on.
  std::pair<std::vector<DeviceView>, std::shared_ptr<cuda::SharedRange>> unmap()
      LINKSPAN_EXCLUDES(mutex_);
  bool same_process() const noexcept { return same_process_; }

 private:
  const LocalKey key_;
  const std::shared_ptr<RegionLivenessView> liveness_;  // of all mappings of that peer
  bool same_process_ = false;
  std::uint64_t host_address_ = 0;
  std::shared_ptr<HostMapping> host_;  // also of other regions in the memfd

  mutable base::Mutex mutex_;
  std::vector<DeviceView> views_ LINKSPAN_GUARDED_BY(mutex_);
  std::shared_ptr<cuda::SharedRange> range_ LINKSPAN_GUARDED_BY(mutex_);  // also other regions'
  bool unmapped_ LINKSPAN_GUARDED_BY(mutex_) = false;
  std::string why_not_ LINKSPAN_GUARDED_BY(mutex_);
};

/// As what the memory of a key is mapped where its process is not this one.
Mapped mapped_by(const LocalKey& key) noexcept;

/// What the engine holds of it.
class LocalMapping final : public Mapping {
 public:
  explicit LocalMapping(std::shared_ptr<ImportedMemory> memory) : memory_(std::move(memory)) {}
  std::uint64_t bytes() const noexcept override { return memory_->key().bytes; }
  Permissions permissions() const noexcept override { return memory_->key().peers; }
  bool alive() const noexcept override { return memory_->alive(); }
  const std::shared_ptr<ImportedMemory>& memory() const noexcept { return memory_; }

 private:
  std::shared_ptr<ImportedMemory> memory_;  // also of batches in flight and of a GPU's bring-up
};

}  // namespace linkspan::transport::local
