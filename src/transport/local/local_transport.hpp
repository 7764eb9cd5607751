// transport/local/local_transport.hpp - memory of this host: of this process or of another one.
//
// It publishes regions (CUDA IPC handle, chunks, pool, memfd, address), imports those of peers as
// mappings, and owns the copiers that all its Endpoints share: one GpuCopier for each GPU that is
// up, one CpuCopier. What a GPU needs is made here, off the lock, when the first region of that GPU
// is published or imported; the path of a byte finds it ready.
// Threads: as transport.hpp says; what Endpoints call is marked.
// Invariants: a region's liveness is granted from publish() to retract(); once retract() answered
// OK no peer maps it and no Endpoint of ours uses it for a peer.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/task_thread.hpp"
#include "copy/calibration.hpp"
#include "copy/cpu_copier.hpp"
#include "copy/gpu_copier.hpp"
#include "copy/resident_copier.hpp"
#include "memory/import_cache.hpp"
#include "memory/registry.hpp"
#include "transport/local/import_budget.hpp"
#include "transport/local/mapping.hpp"

namespace linkspan::transport::local {

class LocalEndpoint;

/// Regions of one peer's process that this process has imported; of all three times as many. Each
/// may be a mapping of its own, of which Linux gives a process 65,530.
inline constexpr std::size_t kMaxImports = 16384;

/// One published region.
/// Threads: `uses` any thread; the rest is immutable.
struct PublishedRegion : std::enable_shared_from_this<PublishedRegion> {
  LocalKey key;
  const memory::Region* region = nullptr;
  std::shared_ptr<const memory::Registration> registration;  ///< Also the registry's. May be null.
  std::atomic<std::uint32_t> uses{0};                        ///< By what we execute for peers.

  /// A GPU can read and write it by DMA.
  bool dma() const noexcept {
    if (key.kind == MemoryKind::shared) return registration != nullptr && registration->pinned();
    return key.kind == MemoryKind::device || key.kind == MemoryKind::pinned;
  }
};

/// Index lists in mapped host memory, first the local one. Freed by the DeferredDestroyer: to do so
/// waits for what is in flight on the GPU.
struct PinnedPages final : KeptPages {
  PinnedPages(std::shared_ptr<cuda::PinnedBuffer> lists, std::size_t count)
      : memory(std::move(lists)),
        local(memory->device_address()),
        remote(local + count * sizeof(std::uint32_t)) {}

  const std::shared_ptr<cuda::PinnedBuffer> memory;  ///< Also of the closing that frees it.
  const std::uint64_t local, remote;                 ///< As kernels see them.
};

struct LocalOptions {
  cuda::Topology* topology = nullptr;    ///< Null: no GPU here.
  memory::Registry* registry = nullptr;  ///< Null: shared memory is never pinned, and no bounces.
  std::uint64_t incarnation = 0;         ///< Of our Engine.
  unsigned cpu_threads = 1;
  std::optional<unsigned> copy_ctas{};          ///< Of one copy by a kernel. None: one for each SM.
  unsigned relay_gpus = 0;                      ///< Others whose links each GPU borrows.
  bool calibrate = false;                       ///< By rates that are measured here.
  std::size_t staging = std::size_t{64} << 20;  ///< Pinned bytes at most, for pageable memory.
  std::size_t max_imports = kMaxImports;
};

/// What copies on one GPU.
struct GpuCopiers {
  std::unique_ptr<copy::GpuCopier> usual;
  std::unique_ptr<copy::ResidentCopier> resident;  ///< Null: it may not run our kernels.
  std::unique_ptr<copy::Calibration> calibration;  ///< Null: likewise, or not asked for.
};

class LocalTransport final : public Transport, public PageKeeper, public KernelReach {
 public:
  static Result<std::unique_ptr<Transport>> create(const LocalOptions& options);
  LocalTransport(const LocalTransport&) = delete;
  LocalTransport& operator=(const LocalTransport&) = delete;
  ~LocalTransport() override;

  std::string_view name() const noexcept override { return "local"; }
  const Capabilities& capabilities() const noexcept override;
  Result<memory::PublishedKey> publish(const memory::Region& region) override
      LINKSPAN_EXCLUDES(mutex_);
  Status retract(const memory::Region& region, bool revoke_immediately) override
      LINKSPAN_EXCLUDES(mutex_);
  Status forget(const memory::Region& region) override LINKSPAN_EXCLUDES(mutex_);
  Result<std::unique_ptr<Mapping>> import_key(RemoteKey key, base::Deadline deadline) override
      LINKSPAN_EXCLUDES(mutex_);
  void unmap(const Mapping& mapping) override;
  Result<std::unique_ptr<KeptPages>> keep_pages(const memory::Region& local, const Mapping& remote,
                                                const Pages& pages) override
      LINKSPAN_EXCLUDES(mutex_);
  Result<KernelView> reach(const Mapping& remote, const GpuUuid& gpu) const override;
  std::vector<CopyCount> copies() const override;
  std::vector<std::byte> address() const override;
  Result<std::unique_ptr<Endpoint>> connect(std::span<const std::byte> address, Channel& channel,
                                            base::Deadline deadline) override
      LINKSPAN_EXCLUDES(mutex_);

  // For its Endpoints, under the scheduler's lock.
  /// Null: not published, or retracted.
  std::shared_ptr<PublishedRegion> published(std::uint64_t serial) const LINKSPAN_EXCLUDES(mutex_);
  memory::PublishedKey key_of(const PublishedRegion& published) const;
  /// Null: that GPU is not up.
  const GpuCopiers* gpu_copiers(const cuda::Device* device) const LINKSPAN_EXCLUDES(mutex_);
  /// Of the GPU that copies where both are mapped here. Null: neither is a GPU's. Any thread.
  const GpuCopiers* copiers_between(const PublishedRegion& local,
                                    const ImportedMemory& remote) const LINKSPAN_EXCLUDES(mutex_);
  copy::CpuCopier& cpu_copier() noexcept { return *cpu_; }
  void count_copy(copy::Method method, std::size_t blocks) noexcept {
    CopyCount& count = copies_[static_cast<std::size_t>(method)];
    ++count.orders;
    count.blocks += blocks;
  }
  cuda::Topology* topology() const noexcept { return options_.topology; }
  memory::Registry* registry() const noexcept { return options_.registry; }
  /// The peer no longer maps our region, or is gone (`serial` 0: no region of ours at all). Costs a
  /// look-up, and of serial 0 as many as there are regions.
  void acknowledged(const LocalEndpoint& endpoint, std::uint64_t serial) LINKSPAN_EXCLUDES(mutex_);
  /// Whether a mapping of that region is alive in this process.
  bool maps(const memory::RegionId& id) const LINKSPAN_EXCLUDES(mutex_);
  /// Gives back what maps that region of a peer, unless a batch uses it. False: an import of it is
  /// still to be asked for again. Memory of the host stays mapped, until its users let it go.
  bool unmap(const memory::RegionId& id) LINKSPAN_EXCLUDES(mutex_);
  /// import_key() for Endpoints, off the lock.
  Result<std::shared_ptr<ImportedMemory>> import_memory(RemoteKey key, base::Deadline deadline)
      LINKSPAN_EXCLUDES(mutex_);
  /// Runs what may take milliseconds, such as the import of an offered key.
  void off_the_lock(std::function<void()> task) { opener_.run(std::move(task)); }
  void remove(const LocalEndpoint& endpoint) LINKSPAN_EXCLUDES(mutex_);

 private:
  struct PublishedEntry {
    std::shared_ptr<PublishedRegion> published;  // also of Endpoints that execute on it
    bool retracting = false, revoke_immediately = false;
    std::set<const LocalEndpoint*> unacknowledged;
  };

  struct ImportEntry {
    memory::RegionId id;
    ImportBudget::Share share;
    std::weak_ptr<ImportedMemory> memory;
    bool opening = true;                     // by the thread that imports it
    bool unmapping = false, closed = false;  // although there is the memory, which maps nothing
  };

  explicit LocalTransport(const LocalOptions& options)
      : options_(options), budget_(ImportBudget::ImportLimits::of_this_host(options.max_imports)) {}
  /// Activates the GPU, makes its copier, opens on it what was imported before. Milliseconds.
  Result<const cuda::Device*> bring_up(const GpuUuid& gpu) LINKSPAN_EXCLUDES(mutex_);
  Result<std::shared_ptr<RegionLivenessView>> liveness_of(std::uint64_t incarnation,
                                                          const base::Fd& fd);
  void forget_import(std::uint64_t number) LINKSPAN_EXCLUDES(mutex_);
  bool maps_any(const memory::RegionId& id) const LINKSPAN_REQUIRES(mutex_);
  /// Endpoints whose peer waits to hear that hear it when nothing maps the region any more.
  void report_closed(const memory::RegionId& id) LINKSPAN_REQUIRES(mutex_);
  Status map_host(ImportedMemory& memory, const base::Fd& memfd, const ImportBudget::Owner& owner,
                  base::Deadline deadline);
  Status map_device(ImportedMemory& memory, std::span<base::Fd> fds, base::Deadline deadline);
  Status map_range(ImportedMemory& memory, const base::Fd& fd, const cuda::Device& device,
                   base::Deadline deadline);
  /// In a thread of its own, when that holds up nobody.
  void close(std::function<void()> closing);
  /// The rates between that GPU and others', by this memory, if they are asked for and not known.
  void calibrate(const cuda::Device& device, const ImportedMemory& memory)
      LINKSPAN_EXCLUDES(mutex_);
  Status add_view(ImportedMemory& memory, const cuda::Device& device, base::Deadline deadline);

  const LocalOptions options_;
  ImportBudget budget_;  // before what has Shares of it
  std::unique_ptr<RegionLivenessTable> liveness_;
  std::array<std::byte, 16> proof_{};
  std::unique_ptr<copy::CpuCopier> cpu_;
  std::array<CopyCount, copy::kMethods> copies_{};  // under the scheduler's lock; by method

  memory::ImportCache<memory::ImportKey, RegionLivenessView> liveness_views_;
  memory::ImportCache<memory::ImportKey, HostMapping> host_mappings_;
  /// By the handle itself too: whoever has it may open that memory, whatever else its key claims.
  using IpcKey = std::pair<memory::ImportKey, cuda::IpcHandle>;
  memory::ImportCache<IpcKey, cuda::IpcMapping> ipc_mappings_;
  memory::ImportCache<memory::ImportKey, cuda::SharedRange> ranges_;  // for all devices

  base::Mutex bringing_up_;  // one GPU at a time
  mutable base::Mutex mutex_;
  std::map<std::uint64_t, PublishedEntry> entries_ LINKSPAN_GUARDED_BY(mutex_);  // by serial
  std::map<const cuda::Device*, GpuCopiers> gpu_copiers_ LINKSPAN_GUARDED_BY(mutex_);
  // Entries go after their memory was closed, so that a peer is told when that is true.
  std::map<std::uint64_t, ImportEntry> imports_ LINKSPAN_GUARDED_BY(mutex_);
  // Numbers of imports_ by incarnation and serial: peers ask by these, as often as they like.
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::set<std::uint64_t>> imports_by_id_
      LINKSPAN_GUARDED_BY(mutex_);
  std::uint64_t last_import_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  std::set<LocalEndpoint*> endpoints_ LINKSPAN_GUARDED_BY(mutex_);
  unsigned next_copy_queue_index_ LINKSPAN_GUARDED_BY(mutex_) = 0;

  base::TaskThread opener_;  // last: its tasks use all of the above
};

}  // namespace linkspan::transport::local
