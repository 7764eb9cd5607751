// cuda/topology.hpp - the GPUs of this process, by UUID, and those that it uses.
//
// A Topology knows every visible GPU without touching its context. A Device is a GPU in use: its
// primary context is retained, its kernels are loaded, its events are made. Ordinals differ between
// processes and never leave this folder (docs/cuda_notes.md, "identity").
// Threads: Topology: any thread. Device and DeviceInfo: immutable after construction.
// Invariants: there is one Device a GPU; a Device lives as long as its Topology, and all that was
// made in its context ends before it.
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
#include "cuda/nvlink_fabric.hpp"
#include "linkspan/types.hpp"

namespace linkspan::cuda {

struct DeviceInfo {
  int ordinal = 0;  ///< Valid in this process only.
  GpuUuid uuid{};
  std::string name, bus_id;
  int sm = 0;  ///< 90 for compute capability 9.0.
  int sm_count = 0, copy_engines = 0;
  std::uint64_t memory_bytes = 0;
  bool dma_buf = false;  ///< Its memory can be exported as DMA-BUF.
  /// Its kernels see what network cards wrote before that was acknowledged. Else see
  /// flush_network_writes().
  bool orders_network_writes = false;
  std::optional<NvlinkFabric> fabric = std::nullopt;  ///< Where NVLink reaches other hosts.
};

class Device {
 public:
  /// Retains the primary context and makes the events. Called by Topology, as is load_kernels().
  static Result<std::unique_ptr<Device>> open(const Driver& driver, const DeviceInfo& info);
  /// Loads the kernels; kernels() has the error. Waits for all that is in flight on the GPU, also
  /// for a stalled stream.
  void load_kernels();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  const DeviceInfo& info() const noexcept { return info_; }
  const Driver& driver() const noexcept { return driver_; }
  CUcontext context() const noexcept { return context_; }
  Result<DeviceScope> enter() const { return DeviceScope::enter(driver_, context_); }
  /// Return the functions of src/copy/kernels; null when kernels() is not OK.
  CUfunction copy_blocks() const noexcept { return kernels_ ? kernels_->copy_blocks() : nullptr; }
  CUfunction copy_pages() const noexcept { return kernels_ ? kernels_->copy_pages() : nullptr; }
  CUfunction copy_pages_of_pairs() const noexcept {
    return kernels_ ? kernels_->copy_pages_of_pairs() : nullptr;
  }
  CUfunction copy_captured() const noexcept {
    return kernels_ ? kernels_->copy_captured() : nullptr;
  }
  CUfunction resident() const noexcept { return kernels_ ? kernels_->resident() : nullptr; }
  CUfunction unpack() const noexcept { return kernels_ ? kernels_->unpack() : nullptr; }
  const Status& kernels() const noexcept { return kernels_status_; }
  /// Returns the events for transfers that wait for a user's stream.
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

/// How memory of a GPU was allocated, as far as it decides how others can map it.
enum class Layout : std::uint8_t {
  whole,  ///< One allocation of cuMemAlloc, or what cannot be distinguished from it.
  chunk,  ///< Mapped by cuMemMap; others may follow it without a gap.
  pool,   ///< Allocated from a stream-ordered pool.
};

/// Holds what the driver knows about an address.
struct PointerFacts {
  MemoryKind kind = MemoryKind::host;  ///< host: unknown to the driver.
  GpuUuid gpu{};                       ///< GPU that has it or for which it was pinned. Zero: host.
  std::uint64_t buffer_id = 0;         ///< Id of the allocation; never reused in this process.
  std::uint64_t base = 0,
                bytes = 0;  ///< The whole allocation; zero for plain host memory. Of
                            ///< chunks this one (fact: Chunks.ARangeIsWhatAnAddressTells).
  Layout layout = Layout::whole;
  bool legacy_ipc = false;  ///< export_ipc() supports it.
};

/// Returns OK if kernels and copies of `from` can access the memory of `to`; unsupported if the
/// machine has no such path.
Status has_peer_access(const Device& from, const DeviceInfo& to);
/// Returns whether atomics of kernels of `from` on memory of `to` are atomic to all GPUs, as over
/// NVLink. Over PCIe they are not.
bool has_native_atomics(const Device& from, const DeviceInfo& to);
/// Enables that access. A second call has no effect.
Status enable_peer_access(const Device& from, const Device& to);

class Topology {
 public:
  /// Finds the GPUs. `unsupported` with the loader's text: there is no driver or no GPU.
  static Result<std::unique_ptr<Topology>> create();

  const Driver& driver() const noexcept { return driver_; }
  std::span<const DeviceInfo> devices() const noexcept { return infos_; }
  const DeviceInfo* find(const GpuUuid& uuid) const noexcept;

  /// Returns the Device of a visible GPU, the same one each time. OFF THE LOCK: the first time
  /// takes up to 0.5 s, and other first times wait meanwhile. Enables peer access with every active
  /// Device where the machine has it. not_found: no such GPU is visible.
  Result<const Device*> activate(const GpuUuid& uuid) LINKSPAN_EXCLUDES(activating_);
  /// Returns the same Device, perhaps without its kernels, to order a user's streams on a GPU that
  /// copies nothing for us. Loading kernels would wait for that very stream.
  Result<const Device*> open(const GpuUuid& uuid) LINKSPAN_EXCLUDES(activating_);
  /// Returns null until the GPU is activated. Takes no lock.
  const Device* active(const GpuUuid& uuid) const noexcept;
  std::vector<const Device*> all_active() const;

  /// Returns the destroyer of what was opened or pinned on the Devices.
  const std::shared_ptr<DeferredDestroyer>& destroyer() const noexcept { return destroyer_; }

  /// Asks the driver about an address. Needs no current context and activates nothing. Takes about
  /// a microsecond and a driver lock: for registration, not for the path of a byte. For a peer's
  /// memory that is mapped here it returns our own GPU, so ask the import cache first
  /// (docs/cuda_notes.md, "identity").
  Result<PointerFacts> query(const void* pointer) const;
  /// Does the same by one driver call and leaves base, bytes and layout unset.
  Result<PointerFacts> identify(const void* pointer) const;

 private:
  explicit Topology(const Driver& driver) noexcept : driver_(driver) {}
  Result<Device*> open_locked(const GpuUuid& uuid) LINKSPAN_REQUIRES(activating_);
  Result<PointerFacts> identify(const void* pointer, CUcontext& context) const;
  Layout layout_of(const void* pointer) const;  // requires a current context
  Status measure(CUcontext context, const void* pointer, PointerFacts& facts) const;

  const Driver& driver_;
  std::vector<DeviceInfo> infos_;  // by ordinal; immutable after create()
  base::Mutex activating_;         // locked while a Device opens, so that it opens once
  std::vector<std::unique_ptr<Device>> owned_ LINKSPAN_GUARDED_BY(activating_);
  std::vector<std::atomic<const Device*>> active_;  // by ordinal
  // Last member: closings use all of the above. Others share it only for moments.
  const std::shared_ptr<DeferredDestroyer> destroyer_ = std::make_shared<DeferredDestroyer>();
};

}  // namespace linkspan::cuda
