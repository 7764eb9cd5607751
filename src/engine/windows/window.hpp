// engine/windows/window.hpp - the state behind a Window: the POD for kernels, and the proxy.
//
// On the path of a byte: the proxy runs each of the ProxyOrders as a transfer of the Engine, in the
// order that device/proxy.cuh defines. Signals that the CPU raises in memory that it does not map
// go the same way. Threads: under the WindowSet's mutex, except device(), path() and the signals,
// which any thread reads. The ProgressThread serves windows; nothing there blocks. Invariants:
// signals are written one at a time, after all copies before them are quiet and ok; after a failure
// nothing is begun. Orders from before the last handle's end are still carried out: the WindowSet
// keeps the state until then, and later windows onto that peer wait for it.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/fork.hpp"
#include "base/mutex.hpp"
#include "engine/transfers/transfer.hpp"
#include "engine/windows/proxy_orders.hpp"
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
  std::uint64_t made LINKSPAN_GUARDED_BY(mutex) = 0;                      // windows until now
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

/// A local region and one of the peer's. Unlike TransferEndpoints it does not keep the local one.
struct WindowRegions {
  memory::RegionId local;
  std::shared_ptr<ImportedRegion> remote;  // also the user's
  std::size_t transport = 0;
};

/// Where a window reaches the peer's memory.
struct MappedAddresses {
  std::uint64_t data = 0, pad = 0;  ///< For the GPU; zero if it does not reach them.
  std::uint64_t pad_here = 0;       ///< For this CPU; zero if it does not reach it.
  std::string why_not;              ///< Why `data` or `pad` is zero.
  std::vector<std::shared_ptr<const void>> keepalives;  ///< Also the transport's.

  /// Returns the address of `view` and keeps it mapped, or returns zero and keeps the first reason.
  std::uint64_t keep(Result<transport::KernelView> view) {
    if (view.ok()) {
      keepalives.push_back(std::move(view->keepalive));
      return view->address;
    }
    if (why_not.empty()) why_not = view.status().what();
    return 0;
  }
};

/// Copies for a proxy. Implemented by the WindowService.
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
    /// Also the registry's and the user's; their memory stays mapped for kernels until it is
    /// deregistered.
    std::shared_ptr<const memory::Registration> local, local_pad;
    MappedAddresses mapped;
    bool atomics = false;  ///< Any number of producers may raise a signal of the peer's.
    const cuda::Device* device = nullptr;  ///< Null for a window of CPU code.
    std::shared_ptr<cuda::DeferredDestroyer>
        destroyer{};                // also the Topology's; null without a device
    std::size_t signal_source = 0;  ///< Index in WindowSet::signal_sources.
    std::uint64_t number = 0;       ///< In the order in which windows are made; set by create().
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
  /// Fails the window if its local region or pad is that one, which it then keeps no longer: its
  /// owner may unmap it.
  void end_on(const memory::Registration& region);
  static Status deregistered();  ///< Returns what such a window fails with.
  /// Returns the local pad; null once it was deregistered.
  const memory::Registration* local_pad() const noexcept { return parts_.local_pad.get(); }
  /// Ends waits of kernels and begins at most one more queue of their orders, so that a kernel that
  /// never stops ordering cannot delay the window's end.
  void retire() { orders_.retire(); }
  /// Returns true if the window has failed, or if nothing is in progress and no order is left that
  /// would be begun.
  bool drained() const;
  bool released() const { return released_; }  ///< Returns true if no handle is left.
  /// Returns true if it is of no use to anybody any more.
  bool over() const { return released_ && drained() && running_.empty(); }
  /// Returns true if `later` must wait for this window, whose handles are gone: both write to one
  /// peer, and who writes a signal has read it before.
  bool precedes(const WindowState& later) const {
    return released_ && !over() && peer() == later.peer() && parts_.number < later.parts_.number;
  }

  /// Returns why signals of the CPU and of the proxy cannot be raised, if so.
  Status cannot_raise() const;
  /// Returns the address of a signal for this CPU, or null if the CPU does not map it.
  std::uint64_t* remote_signal(std::uint32_t index) const noexcept;
  /// Queues a signal of the CPU. Returns its number for raised().
  std::uint64_t enqueue_raise(std::uint32_t index, std::uint64_t n);
  bool raised(std::uint64_t number) const { return raised_ >= number; }

 private:
  /// A transfer of the proxy, in order.
  struct ProxyTransfer {
    std::shared_ptr<TransferState> transfer{};  // also the PeerScheduler's
    bool is_signal = false, of_kernel = false;
    std::optional<std::size_t> fetched{};  // the signal that it reads, for no order
  };
  struct Raise {
    std::uint32_t index;
    std::uint64_t n;
  };

  WindowState(WindowParts parts, std::shared_ptr<WindowSet> set, const device::Window& device,
              std::string path, ProxyOrders orders)
      : parts_(std::move(parts)),
        set_(std::move(set)),
        device_(device),
        path_(std::move(path)),
        orders_(std::move(orders)) {}
  static void release_handle(const std::shared_ptr<WindowState>& state);
  bool reap(std::uint64_t source_address);
  void ended(bool of_kernel);  // counts an order that is done
  bool start(WindowCopier& copier, Op op, const WindowRegions& regions, const Block& block,
             ProxyTransfer as);
  bool begin(WindowCopier& copier, const device::ProxyEntry& entry, bool of_kernel,
             std::uint64_t source_address);

  WindowParts parts_;                     // the local regions under the mutex, the others constant
  const std::shared_ptr<WindowSet> set_;  // also the EngineImpl's and other windows'
  const device::Window device_;
  const std::string path_;
  ProxyOrders orders_;

  Status failure_;
  std::list<ProxyTransfer> running_;
  /// Values of the peer's signals that the CPU does not map, once they were read: an earlier window
  /// may have raised them.
  std::vector<std::optional<std::uint64_t>> sums_;
  bool released_ = false;
  std::deque<Raise> pending_raises_;
  std::uint64_t last_raise_ = 0, raised_ = 0;
};

}  // namespace linkspan::engine
