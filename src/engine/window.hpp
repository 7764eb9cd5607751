// engine/window.hpp - what a Window is a handle of: the POD for kernels, and the proxy behind it.
//
// The proxy takes the orders of kernels from a queue in mapped host memory, runs each as a transfer
// of the Engine's, in order as device/proxy.cuh says, and tells how far it has come. Signals that
// the CPU raises where it maps nothing go the same way.
// Threads: under the WindowSet's mutex, as Endpoints under the TransferScheduler's, but for
// device(), path() and the words, which any thread reads. The ProgressThread serves; nothing there
// waits.
// Invariants: signals are written one at a time, when all copies before them are quiet and ok;
// after a failure nothing is begun. What was ordered before the last handle went is still carried
// out: the WindowSet holds the state until then.
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
#include "engine/transfer.hpp"
#include "linkspan/device/proxy.cuh"
#include "linkspan/window.hpp"

namespace linkspan::engine {

class WindowState;

/// All windows of an Engine, and what they have together.
struct WindowSet {
  const base::ForkWatch fork;
  base::Mutex mutex;
  /// A signal of the CPU's has been written, or a window has settled or ended.
  base::Condition changed;
  std::set<std::shared_ptr<WindowState>> all LINKSPAN_GUARDED_BY(mutex);  // also their handles'
  /// Shared memory from which signals are written, one word a window.
  memory::RegionId signal_sources LINKSPAN_GUARDED_BY(mutex);
  std::uint64_t source_address LINKSPAN_GUARDED_BY(mutex) = 0;
  std::vector<bool> in_use LINKSPAN_GUARDED_BY(mutex);
  /// Words of windows that have gone, from which a transfer may still read.
  std::vector<std::pair<std::size_t, std::shared_ptr<TransferState>>> retiring
      LINKSPAN_GUARDED_BY(mutex);  // the transfers are also the TransferScheduler's

  /// The word is free as soon as that transfer is quiet.
  void release(std::size_t source, std::shared_ptr<TransferState> reader) LINKSPAN_REQUIRES(mutex) {
    if (source >= in_use.size()) return;
    retiring.emplace_back(source, std::move(reader));
  }
  /// None: all are in_use.
  std::optional<std::size_t> acquire() LINKSPAN_REQUIRES(mutex);
};

/// A region here and one of the peer's, as TransferEndpoints but without the pin of the local one.
struct WindowRegions {
  memory::RegionId local;
  std::shared_ptr<ImportedRegion> remote;  // also the user's
  std::size_t transport = 0;
};

/// Who copies for a proxy: the EngineImpl.
class WindowCopier {
 public:
  /// An error: nothing was started. no_resource: try again.
  virtual Result<std::shared_ptr<TransferState>> copy(std::uint64_t peer, Op op,
                                                      const WindowRegions& regions,
                                                      const Block& block) = 0;

 protected:
  ~WindowCopier() = default;
};

class WindowState {
 public:
  struct Parts {
    std::uint64_t peer = 0;
    WindowRegions data, pad;  ///< `pad.local`: WindowSet::signal_sources.
    memory::Region::Facts local, local_pad;
    std::uint64_t remote = 0, remote_pad = 0;  ///< For the GPU; zero: it does not reach them.
    std::string why_not{};                     ///< it does not.
    std::vector<std::shared_ptr<const void>>
        keepalives{};                   // also the transport's: all of these addresses
    std::uint64_t remote_pad_here = 0;  ///< For this CPU; zero: it does not reach it.
    bool remote_pad_on_gpu = false;
    const cuda::Device* device = nullptr;  ///< Null: for code of this CPU.
    std::shared_ptr<cuda::DeferredDestroyer>
        destroyer{};                // also the Topology's; null without a device
    std::size_t signal_source = 0;  ///< Index in WindowSet::signal_sources.
  };
  /// The handle: with its last copy the window leaves the set, at once or when it has settled.
  static Result<std::shared_ptr<WindowState>> create(Parts parts, const WindowOptions& options,
                                                     std::shared_ptr<WindowSet> set);
  WindowState(const WindowState&) = delete;
  WindowState& operator=(const WindowState&) = delete;
  ~WindowState();

  const device::Window& device() const noexcept { return device_; }
  const std::string& path() const noexcept { return path_; }
  std::uint64_t peer() const noexcept { return parts_.peer; }
  std::string dump() const;  ///< A line.

  /// What there is to do now: whether anything was.
  bool serve(WindowCopier& copier, std::uint64_t source_address);
  /// Kernels may order at any time, and ring no bell.
  bool wants_polling() const noexcept { return device_.proxied(); }
  void end(const Status& why);
  const Status& failure() const { return failure_; }
  /// Kernels' waits end, and of their orders one queue more is begun: who orders on and on does
  /// not hold up its end.
  void retire();
  /// Nothing is under way, and nothing that is ordered will be begun.
  bool drained() const;
  bool released() const { return released_; }  ///< No handle is left.

  /// Of the CPU. Null: it has to be asked for.
  std::uint64_t* remote_signal(std::uint32_t index) const noexcept;
  std::uint64_t* local_signal(std::uint32_t index) const noexcept;
  /// Number of the order, for raised().
  std::uint64_t enqueue_raise(std::uint32_t index, std::uint64_t n);
  bool raised(std::uint64_t number) const { return raised_ >= number; }

 private:
  /// What kernels and the proxy share, on a machine with GPUs. Ends when nothing is held up by it.
  struct OnGpu {
    cuda::PinnedBuffer queue;
    cuda::DeviceBuffer flags;  // abort, and behind it the tickets
    cuda::Stream stream;       // of the abort word
  };
  /// One transfer of the proxy's, in order.
  struct ProxyTransfer {
    std::shared_ptr<TransferState> transfer;  // also the TransferScheduler's
    bool is_signal = false, of_kernel = false;
  };
  struct Raise {
    std::uint32_t index;
    std::uint64_t n;
  };

  WindowState(Parts parts, std::shared_ptr<WindowSet> set)
      : parts_(std::move(parts)), set_(std::move(set)) {}
  static void release_handle(const std::shared_ptr<WindowState>& state);
  Status make_queue(std::uint32_t capacity, bool proxied);
  bool next_is_there() const;
  void abort_waits();
  bool reap();
  void ended(bool of_kernel);  // an order
  bool begin(WindowCopier& copier, const device::ProxyEntry& entry, bool of_kernel,
             std::uint64_t source_address);
  void publish_progress();

  Parts parts_;
  const std::shared_ptr<WindowSet> set_;  // also the EngineImpl's and other windows'
  device::Window device_;
  std::string path_;
  std::shared_ptr<OnGpu> on_gpu_;  // its end is the DeferredDestroyer's; null: host memory
  std::vector<device::ProxyEntry> host_queue_;
  std::array<std::uint64_t, 16> host_flags_{};
  device::ProxyEntry* entries_ = nullptr;  // as this CPU sees them
  std::uint64_t* state_ = nullptr;

  Status failure_;
  std::deque<ProxyTransfer> running_;
  std::vector<std::uint64_t> sums_;  // by signal
  std::uint64_t taken_ = 0, done_ = 0;
  std::uint64_t begin_until_ = ~std::uint64_t{0};  // of kernels' orders
  bool released_ = false;
  std::deque<Raise> pending_raises_;
  std::uint64_t last_raise_ = 0, raised_ = 0;
};

}  // namespace linkspan::engine
