// transport/local/mapping.hpp - a peer's region as this process reaches it.
//
// On the path of a byte: LocalEndpoint::post takes the remote address from here. The mapping is
// made at import, off the lock, from what the key brings: the same process (its address), a memfd
// (mmap, pinned once a GPU is up), a CUDA IPC handle (opened on each GPU that is up), chunks or
// pool memory (mapped once, with access for each GPU that is up). Memory that cannot be mapped is a
// Mapping too: the peer executes, or the kernel copies by address.
// Threads: any thread.
// Invariants: views are added when a GPU comes up, and all end with unmap(); the rest is immutable
// once the import is done.
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
#include "transport/local/local_path.hpp"
#include "transport/local/region_liveness.hpp"
#include "transport/local/route.hpp"
#include "transport/transport.hpp"

namespace linkspan::transport::local {

/// A peer's memfd, mapped in this process.
class HostMapping {
 public:
  /// Maps the whole memfd. corrupt: it has less than `needed` bytes, or its owner could shrink it.
  static Result<std::unique_ptr<HostMapping>> map(const base::Fd& memfd, std::uint64_t needed,
                                                  ImportBudget::Share share);
  HostMapping(const HostMapping&) = delete;
  HostMapping& operator=(const HostMapping&) = delete;
  ~HostMapping();

  std::uint64_t base() const noexcept { return base_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  /// Pins the pages for every GPU of this process, once. Takes milliseconds.
  Status pin(const cuda::Device& device) LINKSPAN_EXCLUDES(mutex_);
  bool pinned() const noexcept { return pinned_.load(std::memory_order_acquire); }

 private:
  HostMapping(std::uint64_t base, std::uint64_t bytes, ImportBudget::Share share)
      : base_(base), bytes_(bytes), share_(std::move(share)) {}

  const std::uint64_t base_, bytes_;
  const ImportBudget::Share share_;  // covers bytes_
  std::atomic<bool> pinned_{false};
  base::Mutex mutex_;
  std::optional<cuda::HostRegistration> registration_ LINKSPAN_GUARDED_BY(mutex_);
};

/// A peer's region with all its mappings in this process.
class ImportedMemory {
 public:
  /// GPU memory as one device of this process sees it.
  struct DeviceView {
    const cuda::Device* device = nullptr;
    std::uint64_t address = 0;                 ///< Address of the region's first byte.
    std::shared_ptr<cuda::IpcMapping> opened;  // null if not opened by an IPC handle. The other
                                               // owners are regions in the same allocation.
  };

  ImportedMemory(LocalKey key, std::shared_ptr<RegionLivenessView> liveness)
      : key_(std::move(key)), liveness_(std::move(liveness)) {}

  const LocalKey& key() const noexcept { return key_; }
  LivenessEntry liveness() const noexcept {
    return liveness_->entry(key_.liveness_index, key_.id.serial);
  }
  bool alive() const noexcept { return liveness().alive(); }

  Mapped mapped() const LINKSPAN_EXCLUDES(mutex_);
  /// Returns true if the key lets a GPU of this process reach memory of a GPU.
  bool mappable() const noexcept {
    return same_process_ ? key_.address != 0 : key_.handle.mappable();
  }
  std::string why_not_mapped() const LINKSPAN_EXCLUDES(mutex_);
  /// Returns the address for CPUs of this process; 0 if there is none.
  std::uint64_t host_address() const noexcept { return host_address_; }
  /// Returns true if a GPU may read and write host_address().
  bool host_dma() const noexcept;
  /// Returns the view of `preferred` if it has one, else any. Returns nothing if no GPU of this
  /// process reaches the memory.
  std::optional<DeviceView> view(const cuda::Device* preferred) const LINKSPAN_EXCLUDES(mutex_);

  // Called during the import, and when a GPU comes up:
  void use_same_process();
  void use_host(std::shared_ptr<HostMapping> host);
  void use_range(std::shared_ptr<cuda::SharedRange> range) LINKSPAN_EXCLUDES(mutex_);
  void add_view(DeviceView view) LINKSPAN_EXCLUDES(mutex_);
  bool wants_view(const cuda::Device& device) const LINKSPAN_EXCLUDES(mutex_);
  void refuse(std::string why) LINKSPAN_EXCLUDES(mutex_);
  HostMapping* host() const noexcept { return host_.get(); }
  /// Returns the mapping of chunks or pool memory, which all devices share. Null for other memory,
  /// or if not mapped.
  std::shared_ptr<cuda::SharedRange> range() const LINKSPAN_EXCLUDES(mutex_);
  /// Moves out what maps GPU memory. It is unmapped when the result ends, off the lock. Later calls
  /// map nothing.
  std::pair<std::vector<DeviceView>, std::shared_ptr<cuda::SharedRange>> unmap()
      LINKSPAN_EXCLUDES(mutex_);
  bool same_process() const noexcept { return same_process_; }
  /// Tells whether the last copy across processes ended within copy::kPrompt. Any thread.
  std::atomic<bool>& prompt() const noexcept { return prompt_; }

 private:
  const LocalKey key_;
  const std::shared_ptr<RegionLivenessView> liveness_;  // other owners: mappings of that peer
  bool same_process_ = false;
  mutable std::atomic<bool> prompt_{false};
  std::uint64_t host_address_ = 0;
  std::shared_ptr<HostMapping> host_;  // the other owners are regions in the same memfd

  mutable base::Mutex mutex_;
  std::vector<DeviceView> views_ LINKSPAN_GUARDED_BY(mutex_);
  // Other owners: regions in the same range.
  std::shared_ptr<cuda::SharedRange> range_ LINKSPAN_GUARDED_BY(mutex_);
  bool unmapped_ LINKSPAN_GUARDED_BY(mutex_) = false;
  std::string why_not_ LINKSPAN_GUARDED_BY(mutex_);
};

/// Returns how another process maps the memory of a key.
Mapped mapped_by(const LocalKey& key) noexcept;

/// The engine's handle of an ImportedMemory.
class LocalMapping final : public Mapping {
 public:
  explicit LocalMapping(std::shared_ptr<ImportedMemory> memory) : memory_(std::move(memory)) {}
  std::uint64_t bytes() const noexcept override { return memory_->key().bytes; }
  Permissions permissions() const noexcept override { return memory_->key().peers; }
  bool alive() const noexcept override { return memory_->alive(); }
  const std::shared_ptr<ImportedMemory>& memory() const noexcept { return memory_; }
  /// Returns the path of the last batch, for LocalTransport::update().
  LocalPath& last_path() const noexcept { return last_path_; }

 private:
  std::shared_ptr<ImportedMemory> memory_;  // other owners: batches in flight, bring_up()
  mutable LocalPath last_path_;             // under SharedCopiers::mutex
};

}  // namespace linkspan::transport::local
