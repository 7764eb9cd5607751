// copy/gpu_copier.hpp - copies by the copy engines or the SMs of one GPU.
//
// A CopyQueue is a CUDA stream and a CompletionFlag. start() submits an order to the stream (copies
// or one kernel) and then a write of the order's number to the flag. Orders of a queue end in
// order, so a flag value of N means that all orders up to N are quiet. Small orders that arrive
// while the stream is busy are joined into one submission (joined_copies.cpp). poll() reads the
// flag; it calls the driver only to start joined orders and for orders that used a Relay. An
// overdue order makes poll() query the stream, and a lost context then ends all orders of the
// device with the error. Orders after a user's stream get a queue of their own, because that stream
// may stall.
// Threads: externally synchronised (under its transport's mutex); create() is OFF THE LOCK.
// Invariants: create() makes all memory, streams and lists; a stream has at most kStreamEntries
// entries, so a submission never blocks in the driver; KernelArgs are reused only after the kernel
// that reads them has ended.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "copy/chooser.hpp"
#include "copy/completion_flag.hpp"
#include "copy/copier.hpp"
#include "copy/relay.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"

namespace linkspan::copy {

class GpuCopier final : public Copier {
 public:
  static constexpr unsigned kOrdersPerQueue = 256;
  /// Bounds the copies, kernels, waits and flag writes in a stream. A CUDA stream takes about 1021
  /// entries and then blocks its caller (docs/cuda_notes.md, "queues").
  static constexpr unsigned kStreamEntries = 512;
  static constexpr unsigned kListEntries = 21888;
  /// Maximum number of pages of an order. The list has two indices for each page.
  static constexpr unsigned kPages = kListEntries * sizeof(Piece) / (2 * sizeof(std::uint32_t));
  static constexpr std::uint64_t kPagedBytes = std::uint64_t{1} << 40;
  /// Maximum number of pairs of regions of an order: what fits a kernel's parameters of 4 KiB.
  static constexpr unsigned kPairs = 240;
  static constexpr unsigned kKernelArgsPerQueue = 4;
  /// Maximum number of user streams that may delay copies at once. Copies ordered after any further
  /// stream get no_resource.
  static constexpr unsigned kStreamOrderedQueues = 8;
  /// While a stream is busy, small orders wait to be joined. They start when poll() finds fewer
  /// submissions than this in the stream; so does start() once kEnoughBytes or kEnoughPieces wait.
  static constexpr unsigned kAtOnce = 2;
  static constexpr std::uint64_t kEnoughBytes = 4u << 20;
  static constexpr std::size_t kEnoughPieces = 64;
  static constexpr std::size_t kJoinedPieces = 16;                   ///< Maximum of a small order.
  static constexpr std::uint64_t kJoinedBytes = kMinRelayBytes - 1;  ///< Maximum of a small order.
  static constexpr std::uint64_t kJoinedBytesOfAll = 64u << 20;  ///< Maximum that waits in a queue.
  /// Maximum size of an entry in a kernel's list. One warp copies an entry.
  static constexpr std::uint64_t kListBytes = std::uint64_t{64} << 10;
  /// Returns the size into which copies are cut. A running copy cannot be stopped, so each takes
  /// about 1 ms of its link. Each cut costs 2.4 us: of 1 GiB between GPUs 2 % at 64 MiB and 0.4 %
  /// at 256 MiB (two H200).
  static constexpr std::uint64_t copy_bytes(Link link) noexcept {
    return std::uint64_t{link == Link::host ? 64u : 512u} << 20;
  }

  struct Bounds {
    unsigned queues = 4;
    std::optional<unsigned> ctas{};  ///< Per kernel; 0: no kernel. Empty: one per SM.
  };
  /// Makes a copier for `device`, which must outlive it. Takes milliseconds. Tests pass `clock`.
  static Result<std::unique_ptr<GpuCopier>> create(
      const cuda::Device& device, const Bounds& bounds,
      const base::Clock& clock = base::Clock::steady());

  /// Returns the maximum sum of entries() over the pieces of one order.
  static constexpr std::uint64_t max_pieces(Method method) noexcept {
    return method == Method::sm_kernel ? kListEntries : kStreamEntries - kExtraEntries;
  }
  /// Returns the number of entries that a piece of `bytes` bytes needs. No bytes need none.
  static constexpr std::uint64_t entries(Method method, Link link, std::uint64_t bytes) noexcept {
    const auto cut = [bytes](std::uint64_t most) { return bytes / most + (bytes % most != 0); };
    // By constants: divisions by a variable would cost 8192 blocks 20 us.
    if (method == Method::sm_kernel) return cut(kListBytes);
    return link == Link::host ? cut(copy_bytes(Link::host)) : cut(copy_bytes(Link::peer));
  }
  /// Sets the relay over which copies to this GPU may go, or the reason why there is none. Must be
  /// called before the first order.
  void set_relay(Result<std::unique_ptr<Relay>> relay) { relay_ = std::move(relay); }
  /// Returns why there is no relay. OK: pieces from kMinRelayBytes on use links() links.
  const Status& relay_status() const noexcept { return relay_.status(); }
  unsigned links() const noexcept { return relay_.ok() ? (*relay_)->links() : 1; }
  /// Sets the measured rates, which must outlive the copier; null restores the built-in ones. Any
  /// thread.
  void set_rates(Link link, const Rates* rates) noexcept {
    rates_[static_cast<std::size_t>(link)] = rates;
  }
  const Rates* rates(Link link) const noexcept { return rates_[static_cast<std::size_t>(link)]; }
  /// Returns why sm_kernel is `unsupported`, or OK.
  const Status& kernel() const noexcept { return ctas_.status(); }
  bool has_kernel() const noexcept { return ctas_.ok(); }
  /// Returns the maximum for one kernel; 0: no kernel.
  unsigned ctas() const noexcept { return has_kernel() ? *ctas_ : 0; }
  const cuda::Device& device() const noexcept { return device_; }
  /// Returns why the GPU's context is lost, after which copies that were in flight may still run;
  /// or OK.
  const Status& context_error() const noexcept { return context_error_; }

  /// Starts an order of copy_engine or sm_kernel. invalid_argument: it exceeds max_pieces(), kPages
  /// or kPagedBytes. A driver error after the first queued copy leaves the order in flight; the
  /// order then ends with that error.
  Result<Ticket> start(const Order& order) override;
  /// Asks a kernel to stop. Each warp finishes its entry and perhaps one more: at most 5 ms to host
  /// memory, 1 ms over NVLink. Queued copies run to their end.
  void abort(Ticket ticket) override;
  std::optional<Status> poll(Ticket ticket) override;
  base::Time expected(base::Time now) const override;  ///< Time::max() while idle.

 private:
  static constexpr std::size_t kLine = 128;     // distance between flags of different writers
  static constexpr unsigned kExtraEntries = 4;  // two waits, the flag write, an event

  /// Lies in mapped host memory; its members have lines of their own, by writer.
  struct ArgsMemory {
    alignas(kLine) std::uint32_t aborted = 0;  // set by the kernel
    std::uint64_t refused = 0;  // set by the kernel: a page outside its memory (RefusedPage)
    alignas(kLine) std::uint64_t cleared = 0;  // set once the abort flag is zero again and stays so
    alignas(kLine) std::array<Piece, kListEntries> list;
  };
  /// Holds what a kernel reads and writes beside the data.
  /// Every warp reads the abort flag before every entry; over PCIe these reads are serialised, 1.2
  /// us each, and 8192 entries would take 10 ms (measured, H200). So the flag is in the GPU's
  /// memory, and abort() writes it by a stream of its own.
  struct KernelArgs {
    enum class ArgsState : std::uint8_t { idle, busy, aborting, clearing };
    ArgsMemory* memory = nullptr;
    cuda::CUdeviceptr abort_flag = 0;
    ArgsState state = ArgsState::idle;
  };
  struct QueuedOrder {
    std::uint64_t number = 0;  // position in the queue, from 1; zero: unused
    unsigned entries = 0;  // stream entries, also planned ones; zero: nothing was submitted, quiet
    bool joined = false;   // submitted together with others
    bool is_last = true;   // the last one of a joined submission
    KernelArgs* args = nullptr;       // of a kernel; a joined submission's last order has them
    Method* actual_method = nullptr;  // Order::actual_method, while it waits
    std::uint64_t first = 0;          // PageList::first
    Relay::RelayStreams* relay_streams = nullptr;  // null: no relay was used
    unsigned chunks = 0;                           // chunks that went over the relay
    Status status{};  // the submission's; the order's result once quiet
    base::Time due{}, last_poll{};
  };
  /// Small orders that will be submitted together. All have the same Link and direction.
  struct JoinedOrders {
    struct JoinedPiece {
      std::uint64_t number = 0;  // of its order
      Piece piece;
    };
    std::vector<JoinedPiece> parts;
    std::uint64_t bytes = 0;
    Link link = Link::host;
    bool to_gpu = false;
    unsigned ctas = 0;  // the smallest limit of all orders
  };
  struct CopyQueue {
    CopyQueue(cuda::Stream s, CompletionFlag f) : stream(std::move(s)), flag(std::move(f)) {}

    cuda::Stream stream;
    CompletionFlag flag;                     // number of the last order that has ended
    std::uint64_t submitted = 0, quiet = 0;  // order numbers; those between are in flight
    unsigned in_stream = 0;                  // submissions; joined orders count as one
    std::uint64_t user_stream = 0;           // that a stream-ordered queue waits for
    unsigned entries = 0;                    // in the stream or planned
    JoinedOrders waiting;
    std::array<QueuedOrder, kOrdersPerQueue> orders;
    std::array<KernelArgs, kKernelArgsPerQueue> kernel_args;
    base::Time last_due{}, next_query{};

    QueuedOrder& of(std::uint64_t number) { return orders[number % kOrdersPerQueue]; }
    const QueuedOrder& of(std::uint64_t number) const { return orders[number % kOrdersPerQueue]; }
    /// Returns the number of the last order in the stream; later ones wait.
    std::uint64_t begun() const {
      return waiting.parts.empty() ? submitted : waiting.parts.front().number - 1;
    }
  };
  /// The result of a submission: what reached the streams, and the error that stopped it.
  struct SubmitResult {
    unsigned entries = 0;  // in the queue's stream
    Status status{};
    std::uint64_t relayed = 0;  // bytes that go over the relay
    unsigned chunks = 0;        // of the relayed bytes
    bool joined = true;         // false: the stream does not wait for the relayed bytes
  };

  GpuCopier(const cuda::Device& device, const Status& kernel, unsigned ctas,
            const base::Clock& clock, cuda::PinnedBuffer memory, cuda::DeviceBuffer abort_flags,
            cuda::Stream aborts, std::vector<CopyQueue> queues);

  /// Returns null if other user streams occupy all stream-ordered queues.
  CopyQueue* choose_queue(const Order& order);
  SubmitResult queue_copies(const cuda::DeviceScope& scope, CopyQueue& queue, const Order& order,
                            Relay::RelayStreams* relay_streams);
  SubmitResult queue_kernel(const cuda::DeviceScope& scope, const CopyQueue& queue,
                            const KernelArgs& args, const Order& order, std::uint64_t bytes) const;
  // joined_copies.cpp
  static bool may_wait(const CopyQueue& queue, const Order& order, std::uint64_t bytes);
  void wait(CopyQueue& queue, std::uint64_t number, const Order& order, std::uint64_t bytes);
  void begin_waiting_if_due(CopyQueue& queue);
  bool begin_waiting(CopyQueue& queue);  // false: no room yet
  void end_unbegun(CopyQueue& queue, QueuedOrder& order, Status status);
  Status launch_pages(const cuda::DeviceScope& scope, const CopyQueue& queue,
                      const KernelArgs& args, const PageList& pages, unsigned most_ctas) const;
  static KernelArgs* idle_args(CopyQueue& queue);
  void request_abort(KernelArgs& args);
  Status retire_args(KernelArgs& args, std::uint64_t first);  // returns its kernel's result

  QueuedOrder* find(Ticket ticket);
  void advance(CopyQueue& queue);  // retires ended orders and starts waiting ones
  void poll_completion_flag(CopyQueue& queue);
  void retire(CopyQueue& queue, std::uint64_t up_to);
  void query_stream(CopyQueue& queue);
  void fail_all(const Status& cause);

  const cuda::Device& device_;
  const Result<unsigned> ctas_;  // maximum for one kernel, or why there is none
  const base::Clock& clock_;
  std::array<std::atomic<const Rates*>, 3> rates_{};  // by Link
  Status context_error_;                              // not OK: the context is lost
  std::size_t unreported_ = 0;                        // quiet orders that poll() has not returned
  Result<std::unique_ptr<Relay>> relay_ =
      Status(Code::unsupported, Scope::request, "no links are lent");
  cuda::PinnedBuffer memory_;  // completion flags and KernelArgs
  cuda::DeviceBuffer abort_flags_;
  cuda::Stream aborts_;
  std::vector<Piece> joined_;  // scratch of begin_waiting(), keeps its capacity
  // The last kStreamOrderedQueues are for orders after user streams. Last member: the streams end
  // before the memory that they write to.
  std::vector<CopyQueue> queues_;
};

}  // namespace linkspan::copy
