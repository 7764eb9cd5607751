// engine/windows/window.hpp - the state behind a Window: the POD for kernels, and the proxy.
//
// On the path of a byte: the proxy pops orders of kernels from a queue in mapped host memory, runs
// each as a transfer of the Engine in the order that device/proxy.cuh defines, and publishes its
// progress. Signals that the CPU raises in memory that it does not map go the same way.
// Threads: under the WindowSet's mutex, except device(), path() and the signals, which any thread
// reads. The ProgressThread serves windows; nothing there blocks.
// Invariants: signals are written one at a time, after all copies before them are quiet and ok;
// after a failure nothing is begun. Orders from before the last handle's end are still carried out:
// the WindowSet keeps the state until then.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/fork.hpp"
#include "base/mutex.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"
#include "engine/transfers/transfer.hpp"
#include "linkspan/device/proxy.cuh"
#include "linkspan/window.hpp"

namespace linkspan::engine {

class WindowState;

/// All windows of an Engine and their shared resources.
struct WindowSet {
  const base::ForkWatch fork;
  base::Mutex mutex;
  /// Notified when a signal of the CPU was written or a window has drained or ended.
  base::Condition changed;
  std::set<std::shared_ptr<WindowState>> all LINKSPAN_GUARDED_BY(mutex);  // also their handles'
  /// Shared memory from which signals are written: one 64-bit value for each window.
  memory::RegionId signal_sources LINKSPAN_GUARDED_BY(mutex);
  std::uint64_t source_address LINKSPAN_GUARDED_BY(mutex) = 0;
  std::vector<bool> in_use LINKSPAN_GUARDED_BY(mutex);
  /// Signal sources of destroyed windows, with the transfer that may still read them.
  std::vector<std::pair<std::size_t, std::shared_ptr<TransferState>>> retiring
      LINKSPAN_GUARDED_BY(mutex);  // the transfers are also the PeerScheduler's

  /// Frees the signal source once `reader` is quiet; null: at once.
  void release(std::size_t source, std::shared_ptr<TransferState> reader) LINKSPAN_REQUIRES(mutex) {
    if (source >= in_use.size()) return;
    retiring.emplace_back(source, std::move(reader));
  }
  /// Returns the index of a free signal source, or nullopt if all are in use.
  std::optional<std::size_t> acquire() LINKSPAN_REQUIRES(mutex);
};

/// A local region and one of the peer's. Unlike TransferEndpoints it does not pin the local one.
struct WindowRegions {
  memory::RegionId local;
  std::shared_ptr<ImportedRegion> remote;  // also the user's
  std::size_t transport = 0;
};

/// Copies for a proxy. Implemented by EngineImpl.
class WindowCopier {
 public:
  /// Starts a copy. On error nothing was started; no_resource: try again.
  virtual Result<std::shared_ptr<TransferState>> copy(std::uint64_t peer, Op op,
                                                      const WindowRegions& regions,
                                                      const Block& block) = 0;

 protected:
  ~WindowCopier() = default;
};

class WindowState {
 public:
  struct WindowParts {
    std::uint64_t peer = 0;
    WindowRegions data, pad;  ///< `pad.local` is WindowSet::signal_sources.
    memory::Region::Facts local, local_pad;
    std::uint64_t remote = 0,
                  remote_pad = 0;  ///< Addresses for the GPU; zero if it does not reach them.
    std::string why_not{};         ///< Why `remote` or `remote_pad` is zero.
    std::vector<std::shared_ptr<const void>>
        keepalives{};                   // also the transport's: keep the addresses mapped
    std::uint64_t remote_pad_here = 0;  ///< Address for this CPU; zero if it does not reach it.
    bool remote_pad_on_gpu = false;
    const cuda::Device* device = nullptr;  ///< Null for a window of CPU code.
    std::shared_ptr<cuda::DeferredDestroyer>
        destroyer{};                // also the Topology's; null without a device
    std::size_t signal_source = 0;  ///< Index in WindowSet::signal_sources.
  };
  /// Makes a window and adds it to the set. When the last copy of the returned handle ends, the
  /// window leaves the set, at once or when it has drained.
  static Result<std::shared_ptr<WindowState>> create(WindowParts parts,
                                                     const WindowOptions& options,
                                                     std::shared_ptr<WindowSet> set);
  WindowState(const WindowState&) = delete;
  WindowState& operator=(const WindowState&) = delete;
  ~WindowState();

  const device::Window& device() const noexcept { return device_; }
  const std::string& path() const noexcept { return path_; }
  std::uint64_t peer() const noexcept { return parts_.peer; }
  std::string dump() const;  ///< Returns a line for dump().

  /// Carries out what can be done now. Returns whether anything was.
  bool serve(WindowCopier& copier, std::uint64_t source_address);
  /// Returns true if kernels may write orders, which wake no thread.
  bool wants_polling() const noexcept { return device_.proxied(); }
  /// Fails the window with `why`: nothing more is begun and waits of kernels end.
  void end(const Status& why);
  const Status& failure() const { return failure_; }
  /// Ends waits of kernels and begins at most one more queue of their orders, so that a kernel that
  /// never stops ordering cannot delay the window's end.
  void retire();
  /// Returns true if nothing is in progress and no order is left that would be begun.
  bool drained() const;
  bool released() const { return released_; }  ///< Returns true if no handle is left.

  /// Return the address of a signal for this CPU, or null if the CPU does not map it.
  std::uint64_t* remote_signal(std::uint32_t index) const noexcept;
  std::uint64_t* local_signal(std::uint32_t index) const noexcept;
  /// Queues a signal of the CPU. Returns its number for raised().
  std::uint64_t enqueue_raise(std::uint32_t index, std::uint64_t n);
  bool raised(std::uint64_t number) const { return raised_ >= number; }

 private:
  /// Memory that kernels and the proxy share. Destroyed by the DeferredDestroyer.
  struct OnGpu {
    cuda::PinnedBuffer queue;
    cuda::DeviceBuffer flags;  // the abort flag, then the tickets
    cuda::Stream stream;       // writes the abort flag
  };
  /// A transfer of the proxy, in order.
  struct ProxyTransfer {
    std::shared_ptr<TransferState> transfer;  // also the PeerScheduler's
    bool is_signal = false, of_kernel = false;
  };
  struct Raise {
    std::uint32_t index;
    std::uint64_t n;
  };

  WindowState(WindowParts parts, std::shared_ptr<WindowSet> set)
      : parts_(std::move(parts)), set_(std::move(set)) {}
  static void release_handle(const std::shared_ptr<WindowState>& state);
  Status make_queue(std::uint32_t capacity, bool proxied);
  bool next_is_there() const;
  void abort_waits();
  bool reap();
  void ended(bool of_kernel);  // counts an order that is done
  bool begin(WindowCopier& copier, const device::ProxyEntry& entry, bool of_kernel,
             std::uint64_t source_address);
  void publish_progress();

  WindowParts parts_;
  const std::shared_ptr<WindowSet> set_;  // also the EngineImpl's and other windows'
  device::Window device_;
  std::string path_;
  std::shared_ptr<OnGpu> on_gpu_;  // destroyed by the DeferredDestroyer; null: host memory
  std::vector<device::ProxyEntry> host_queue_;
  std::array<std::uint64_t, 16> host_flags_{};
  device::ProxyEntry* entries_ = nullptr;  // address for this CPU
  std::uint64_t* state_ = nullptr;

  Status failure_;
  std::deque<ProxyTransfer> running_;
  std::vector<std::uint64_t> sums_;  // values of the peer's signals
  std::uint64_t taken_ = 0, done_ = 0;
  std::uint64_t begin_until_ =
      ~std::uint64_t{0};  // first order of a kernel that is not begun any more
  bool released_ = false;
  std::deque<Raise> pending_raises_;
  std::uint64_t last_raise_ = 0, raised_ = 0;
};

}  // namespace linkspan::engine
