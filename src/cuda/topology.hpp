// cuda/topology.hpp - the GPUs of this process, by UUID, and which of them it uses.
//
// A Topology knows every visible GPU without touching its context. A Device is a GPU in use:
// primary context retained, kernels loaded, events made. Ordinals differ between processes and
// never leave this folder (docs/cuda_notes.md, "identity").
// Threads: Topology: any thread. Device and DeviceInfo: immutable after construction.
// Invariants: a Device lives as long as its Topology; whatever was made in its context is gone
// before that. One Device a GPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "cuda/deferred_destroyer.hpp"
#include "cuda/device_scope.hpp"
#include "cuda/event.hpp"
#include "cuda/kernels.hpp"
#include "linkspan/types.hpp"

namespace linkspan::cuda {

struct DeviceInfo {
  int ordinal = 0;  ///< This process's and this driver's only.
  GpuUuid uuid{};
  std::string name, bus_id;
  int sm = 0;  ///< 90 for compute capability 9.0.
  int sm_count = 0, copy_engines = 0;
  std::uint64_t memory_bytes = 0;
  bool dma_buf = false;  ///< Its memory can be exported as a DMA-BUF.
};

class Device {
 public:
  /// Retains the primary context and makes the events; the Topology's to call, as load_kernels().
  static Result<std::unique_ptr<Device>> open(const Driver& driver, const DeviceInfo& info);
  /// What fails is in kernels(). Waits for all that is in flight on the GPU, a held stream too.
  void load_kernels();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  const DeviceInfo& info() const noexcept { return info_; }
  const Driver& driver() const noexcept { return driver_; }
  CUcontext context() const noexcept { return context_; }
  Result<DeviceScope> enter() const { return DeviceScope::enter(driver_, context_); }
  /// Of src/copy/kernels; null when kernels() is not OK.
  CUfunction copy_blocks() const noexcept { return kernels_ ? kernels_->copy_blocks() : nullptr; }
  CUfunction copy_pages() const noexcept { return kernels_ ? kernels_->copy_pages() : nullptr; }
  CUfunction resident() const noexcept { return kernels_ ? kernels_->resident() : nullptr; }
  CUfunction unpack() const noexcept { return kernels_ ? kernels_->unpack() : nullptr; }
  const Status& kernels() const noexcept { return kernels_status_; }
  /// For as many transfers as may wait behind a user's streams.
  EventPool& events() const noexcept { return *events_; }

 private:
  static constexpr std::size_t kEvents = 4096;

  Device(const Driver& driver, const DeviceInfo& info, CUcontext context)
      : driver_(driver), info_(info), context_(context) {}

  const Driver& driver_;
  const DeviceInfo info_;
  const CUcontext context_;
  std::optional<Kernels> kernels_;
  Status kernels_status_;
  std::unique_ptr<EventPool> events_;
};

/// How memory of a GPU was made, as far as that decides how others can map it.
enum class Layout : std::uint8_t {
  whole,  ///< One allocation of cuMemAlloc, or nothing that can be told from it.
  chunk,  ///< Mapped by cuMemMap; others may follow it without a gap.
  pool,   ///< Allocated from a stream-ordered pool.
};

/// What the driver knows about one address.
struct PointerFacts {
  MemoryKind kind = MemoryKind::host;  ///< device, pinned, managed, or host: the driver knows none.
  GpuUuid gpu{};                       ///< Where it lies, or was pinned for. Zero: host.
  std::uint64_t buffer_id = 0;         ///< The allocation's, never used again in this process.
  std::uint64_t base = 0,
                bytes = 0;  ///< The whole allocation; zero for plain host memory. Of
                            ///< chunks this one (fact: Chunks.ARangeIsWhatAnAddressTells).
  Layout layout = Layout::whole;
  bool legacy_ipc = false;  ///< export_ipc() will take it.
};

/// Whether kernels and copies of `from` may use the memory of `to`. unsupported: the machine has no
/// such way.
Status has_peer_access(const Device& from, const DeviceInfo& to);
/// Lets them. Again: no effect.
Status enable_peer_access(const Device& from, const Device& to);

class Topology {
 public:
  /// `unsupported` with the loader's words where there is no driver or no GPU.
  static Result<std::unique_ptr<Topology>> create();
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;
  ~Topology() = default;

  const Driver& driver() const noexcept { return driver_; }
  std::span<const DeviceInfo> devices() const noexcept { return infos_; }
  const DeviceInfo* find(const GpuUuid& uuid) const noexcept;

  /// The Device of a visible GPU; the same one each time. OFF THE LOCK: the first time takes up to
  /// 0.5 s, and beside it other first times wait. Peer access with every active Device is switched
  /// on where the machine has it. not_found: no such GPU is visible.
  Result<const Device*> activate(const GpuUuid& uuid) LINKSPAN_EXCLUDES(activating_);
  /// The same Device, its kernels perhaps not loaded: for the order of a user's streams on a GPU
  /// that moves nothing for us. Loading would wait for that very stream.
  Result<const Device*> open(const GpuUuid& uuid) LINKSPAN_EXCLUDES(activating_);
  /// Null while it was not activated. Takes no lock.
  const Device* active(const GpuUuid& uuid) const noexcept;
  std::vector<const Device*> all_active() const;

  /// Of what was opened or pinned on its Devices.
  const std::shared_ptr<DeferredDestroyer>& destroyer() const noexcept { return destroyer_; }

  /// Needs no current context and activates nothing. A microsecond or so, a driver lock: at
  /// registration, not on the path of a byte. Of a peer's memory that is mapped here it tells our
  /// own GPU: ask the import cache first (docs/cuda_notes.md, "identity").
  Result<PointerFacts> query(const void* pointer) const;
  /// The same by one driver call: it leaves base, bytes and layout as they are.
  Result<PointerFacts> identify(const void* pointer) const;

 private:
  explicit Topology(const Driver& driver) noexcept : driver_(driver) {}
  Result<Device*> open_locked(const GpuUuid& uuid) LINKSPAN_REQUIRES(activating_);
  Result<PointerFacts> identify(const void* pointer, CUcontext& context) const;
  Layout layout_of(const void* pointer) const;  // in a context
  Status measure(CUcontext context, const void* pointer, PointerFacts& facts) const;

  const Driver& driver_;
  std::vector<DeviceInfo> infos_;  // by ordinal; not changed after create()
  base::Mutex activating_;         // held while a Device opens, so that it opens once
  std::vector<std::unique_ptr<Device>> owned_ LINKSPAN_GUARDED_BY(activating_);
  std::vector<std::atomic<const Device*>> active_;  // by ordinal
  // Last: they use all of the above. Shared with nobody for long.
  const std::shared_ptr<DeferredDestroyer> destroyer_ = std::make_shared<DeferredDestroyer>();
};

}  // namespace linkspan::cuda
