// transport/local/local_transport.hpp - the transport for memory of this host, of this process or
// another one.
//
// It publishes regions (CUDA IPC handle, chunks, pool, memfd, address), imports those of peers as
// mappings, and owns the copiers that its Endpoints share: GpuCopiers for each GPU that is up, and
// one CpuCopier.
// On the path of a byte: only look-ups. A GPU is prepared off the lock, when the first region of
// that GPU is published or imported.
// Threads: as transport.hpp says; functions for Endpoints are marked.
// Invariants: those of its PublishedRegions and its ImportTable.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/executor.hpp"
#include "copy/calibration.hpp"
#include "copy/cpu_copier.hpp"
#include "copy/gpu_copier.hpp"
#include "copy/resident_copier.hpp"
#include "memory/registry.hpp"
#include "transport/local/import_table.hpp"
#include "transport/local/mapping_cache.hpp"
#include "transport/local/pinned_slots.hpp"
#include "transport/local/published_regions.hpp"

namespace linkspan::transport::local {

/// Limit of imported regions of one peer process; three times as many of all. Each may be a mapping
/// of its own, of which Linux gives a process 65,530.
inline constexpr std::size_t kMaxImports = 16384;

/// Index lists in mapped host memory, first the local one. The DeferredDestroyer frees them,
/// because that waits for work in flight on the GPU.
struct PinnedPages final : KeptPages {
  PinnedPages(std::shared_ptr<cuda::PinnedBuffer> lists, std::size_t count)
      : memory(std::move(lists)),
        local(memory->device_address()),
        remote(local + count * sizeof(std::uint32_t)) {}

  const std::shared_ptr<cuda::PinnedBuffer> memory;  ///< The other owner frees it.
  const std::uint64_t local, remote;                 ///< Addresses for kernels.
};

struct LocalOptions {
  cuda::Topology* topology = nullptr;    ///< Null: no GPU here.
  memory::Registry* registry = nullptr;  ///< Null: no pinning of shared memory, no bounce memory.
  std::uint64_t incarnation = 0;         ///< This Engine's.
  unsigned cpu_threads = 1;
  std::optional<unsigned> copy_ctas{};  ///< CTAs of one copy kernel. Empty: one for each SM.
  unsigned relay_gpus = 0;              ///< Other GPUs whose links each GPU may use.
  bool calibrate = false;               ///< Measures copy rates here.
  std::size_t staging = std::size_t{64} << 20;  ///< Limit of pinned bytes for pageable memory.
  std::size_t max_imports = kMaxImports;
};

/// The copiers of one GPU.
struct GpuCopiers {
  std::unique_ptr<copy::GpuCopier> usual;
  std::unique_ptr<copy::ResidentCopier> resident;  ///< Null: our kernels cannot run there.
  std::unique_ptr<copy::Calibration> calibration;  ///< Null: likewise, or calibrate is off.
  std::unique_ptr<PinnedSlots> slots;              ///< Null: no memory for them.
};

/// The CpuCopier, the counters, and the mutex and the epoch of all copiers.
class SharedCopiers {
 public:
  explicit SharedCopiers(std::unique_ptr<copy::CpuCopier> threads) : cpu(std::move(threads)) {}

  /// Guards all copiers and what their orders point to. Locked by each function of an Endpoint,
  /// after the peer's mutex and before LocalTransport::mutex_.
  mutable base::Mutex mutex;
  /// Counts the GPUs that came up and the regions and mappings that ended. A LocalPath that was
  /// found before one of them is not used after it.
  std::atomic<std::uint64_t> epoch{1};
  const std::unique_ptr<copy::CpuCopier> cpu;

  void count(copy::Method method, std::size_t blocks) noexcept LINKSPAN_REQUIRES(mutex) {
    CopyCount& count = counts_[static_cast<std::size_t>(method)];
    ++count.orders;
    count.blocks += blocks;
  }
  std::vector<CopyCount> counts() const LINKSPAN_EXCLUDES(mutex);

 private:
  std::array<CopyCount, copy::kMethods> counts_ LINKSPAN_GUARDED_BY(mutex){};  // by method
};

class LocalTransport final : public Transport {
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
  std::vector<CopyCount> copies() const override { return copiers.counts(); }
  std::vector<std::byte> address() const override;
  Result<std::unique_ptr<Endpoint>> connect(std::span<const std::byte> address, Channel& channel,
                                            base::Deadline deadline) override
      LINKSPAN_EXCLUDES(mutex_);

  // For its Endpoints, under copiers.mutex.
  SharedCopiers copiers;
  /// Returns null if the region is not published or retracted.
  std::shared_ptr<PublishedRegion> published(std::uint64_t serial) const LINKSPAN_EXCLUDES(mutex_);
  /// Returns null if that GPU is not up.
  const GpuCopiers* gpu_copiers(const cuda::Device* device) const LINKSPAN_EXCLUDES(mutex_);
  /// Any thread. Finds what copies between the two, with several look-ups.
  LocalPath find_path(const PublishedRegion& local, const ImportedMemory& remote) const
      LINKSPAN_EXCLUDES(mutex_);
  /// Makes the path that of these two regions; costs no look-up if it is already. Returns false if
  /// the local one is not published or retracted.
  [[nodiscard]] bool update(LocalPath& path, const memory::Region& local,
                            const ImportedMemory& remote) const LINKSPAN_EXCLUDES(mutex_);
  cuda::Topology* topology() const noexcept { return options_.topology; }
  memory::Registry* registry() const noexcept { return options_.registry; }
  /// Records that the peer no longer maps our region; `serial` 0: none of our regions. Costs one
  /// look-up, and one for each region if `serial` is 0.
  void acknowledged(const LocalEndpoint& endpoint, std::uint64_t serial) LINKSPAN_EXCLUDES(mutex_);
  /// Returns whether this process maps that region.
  bool maps(const memory::RegionId& id) const LINKSPAN_EXCLUDES(mutex_);
  /// Unmaps a peer's region unless a batch uses it. Returns false if an import remains; then call
  /// again. Host memory stays mapped until its users drop it.
  bool unmap(const memory::RegionId& id) LINKSPAN_EXCLUDES(mutex_);
  /// OFF THE LOCK. Implements import_key() for Endpoints too.
  Result<std::shared_ptr<ImportedMemory>> import_memory(RemoteKey key, base::Deadline deadline)
      LINKSPAN_EXCLUDES(mutex_);
  /// Runs a task that may take milliseconds, such as the import of an offered key.
  void off_the_lock(std::function<void()> task) { opener_.run(std::move(task)); }
  void remove(const LocalEndpoint& endpoint) LINKSPAN_EXCLUDES(mutex_);

 private:
  LocalTransport(const LocalOptions& options, std::unique_ptr<RegionLivenessTable> liveness,
                 std::unique_ptr<copy::CpuCopier> cpu)
      : copiers(std::move(cpu)),
        options_(options),
        mappings_(options.topology, ImportBudget::ImportLimits::of_this_host(options.max_imports)),
        published_(std::move(liveness)) {}
  /// Activates the GPU, makes its copiers and maps earlier imports on it. Takes milliseconds.
  Result<const cuda::Device*> bring_up(const GpuUuid& gpu) LINKSPAN_EXCLUDES(mutex_);
  void forget_import(std::uint64_t number) LINKSPAN_EXCLUDES(mutex_);
  /// Informs the Endpoints of that peer once nothing maps the region any more.
  void report_closed(const memory::RegionId& id) LINKSPAN_REQUIRES(mutex_);
  /// Runs the task on a thread where it delays no other work.
  void close(std::function<void()> closing);
  /// Measures the rates between that GPU and others by this memory, if that is asked for and not
  /// done yet.
  void calibrate(const cuda::Device& device, const ImportedMemory& memory)
      LINKSPAN_EXCLUDES(mutex_);
  Status map_device(ImportedMemory& memory, std::span<base::Fd> fds, base::Deadline deadline);

  const LocalOptions options_;
  std::array<std::byte, 16> proof_{};
  MappingCache mappings_;

  base::Mutex bringing_up_;  // one GPU at a time
  mutable base::Mutex mutex_;
  PublishedRegions published_ LINKSPAN_GUARDED_BY(mutex_);
  std::map<const cuda::Device*, GpuCopiers> gpu_copiers_ LINKSPAN_GUARDED_BY(mutex_);
  ImportTable imports_ LINKSPAN_GUARDED_BY(mutex_);
  std::set<LocalEndpoint*> endpoints_ LINKSPAN_GUARDED_BY(mutex_);
  unsigned next_copy_queue_index_ LINKSPAN_GUARDED_BY(mutex_) = 0;

  base::Executor opener_{base::kThreadNamed<"ls-opener">};  // last: its tasks use all of the above
};

}  // namespace linkspan::transport::local
