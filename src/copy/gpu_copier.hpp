// copy/gpu_copier.hpp - copies by one GPU: by its copy engines or by a kernel on its SMs.
//
// A queue is a CUDA stream and a completion_flag in pinned memory. An order is put into the stream
// (copies or one kernel), and behind it the order's number is written to the queue's
// completion_flag, by a stream flag_stream it where the queue's would stand still for that between
// two orders. Orders of a queue end in order, so a completion_flag that has reached N says that all
// up to N are quiet. Small orders that come while others are in the stream go together, as one
// (joined_copies.cpp). poll() reads the completion_flag and calls no driver, but for those that
// have waited, and for an order that took lent links (copy/relay.hpp). Only when it is overdue is
// the stream asked, and a lost context then ends every order of the device with its real cause.
// What runs after a stream of the user's goes into a queue that waits for that stream only: it may
// stand still, and nobody else with it. Threads: externally synchronised (under the scheduler's
// lock); create() is OFF THE LOCK. Invariants: all memory, streams and lists are made in create();
// a stream never holds more than kStreamEntries, so a submission never blocks in the driver; a
// kernel args is free again only when the kernel that reads it has ended.
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
#include "copy/copier.hpp"
#include "copy/relay.hpp"
#include "cuda/event.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"

namespace linkspan::copy {

class GpuCopier final : public Copier {
 public:
  static constexpr unsigned kOrdersPerQueue = 256;
  /// Copies, kernels and writes of words. CUDA's stream takes about 1021 and then blocks the
  /// caller (docs/cuda_notes.md, "queues").
  static constexpr unsigned kStreamEntries = 512;
  static constexpr unsigned kListEntries = 16384;
  /// Of an order of pages, whose list is two indices a page.
  static constexpr unsigned kPages = kListEntries * sizeof(Piece) / (2 * sizeof(std::uint32_t));
  static constexpr std::uint64_t kPagedBytes = std::uint64_t{1} << 40;
  static constexpr unsigned kKernelArgsPerQueue = 4;
  /// So many streams of users can stand still at a time; of others the orders are not
  /// actual_method.
  static constexpr unsigned kStreamOrderedQueues = 8;
  /// While something is in the stream of a queue, small orders wait to join each other: until
  /// poll() finds fewer submissions than this there, or start() so much that it looks itself.
  static constexpr unsigned kAtOnce = 2;
  static constexpr std::uint64_t kEnoughBytes = 4u << 20;
  static constexpr std::size_t kEnoughPieces = 64;
  static constexpr std::size_t kJoinedPieces = 16;                   ///< Of a small order.
  static constexpr std::uint64_t kJoinedBytes = kMinRelayBytes - 1;  ///< Likewise.
  static constexpr std::uint64_t kJoinedBytesOfAll = 64u << 20;      ///< That wait in a queue.
  /// What one warp copies of a kernel's list.
  static constexpr std::uint64_t kListBytes = std::uint64_t{64} << 10;
  /// Copies are cut so. One that runs cannot be stopped: each is about 1 ms of its link. Each cut
  /// costs 2.4 us, of 1 GiB between GPUs 2 % at 64 MiB and 0.4 % at 256 MiB (two H200).
  static constexpr std::uint64_t copy_bytes(Link link) noexcept {
    return std::uint64_t{link == Link::host ? 64u : 512u} << 20;
  }

  struct Bounds {
    unsigned queues = 4;
    std::optional<unsigned> ctas{};  ///< Of one kernel; 0: none is started. None: one for each SM.
  };
  /// `device` outlives the copier. Milliseconds. `clock` is for tests.
  static Result<std::unique_ptr<GpuCopier>> create(
      const cuda::Device& device, const Bounds& bounds,
      const base::Clock& clock = base::Clock::steady());
  ~GpuCopier() override;
  GpuCopier(const GpuCopier&) = delete;
  GpuCopier& operator=(const GpuCopier&) = delete;

  /// What one order may need: the sum of entries() over its pieces is at most this.
  static constexpr std::uint64_t max_pieces(Method method) noexcept {
    return method == Method::sm_kernel ? kListEntries : kStreamEntries - kExtraEntries;
  }
  /// How many a piece of so many bytes counts for; none has zero.
  static constexpr std::uint64_t entries(Method method, Link link, std::uint64_t bytes) noexcept {
    const auto cut = [bytes](std::uint64_t most) { return bytes / most + (bytes % most != 0); };
    // By constants: divisions by a variable would cost 8192 blocks 20 us.
    if (method == Method::sm_kernel) return cut(kListBytes);
    return link == Link::host ? cut(copy_bytes(Link::host)) : cut(copy_bytes(Link::peer));
  }
  /// Copies to this GPU may take links of other GPUs, or the reason why not. Before the first
  /// order.
  void set_relay(Result<std::unique_ptr<Relay>> relay);
  /// Why none is lent; OK: links() are actual_method from kMinRelayBytes on.
  const Status& relay_status() const noexcept { return relay_status_; }
  unsigned links() const noexcept { return relay_ != nullptr ? relay_->links() : 1; }
  /// As measured, which outlive this; any thread. Null: built in.
  void set_rates(Link link, const Rates* rates) noexcept {
    rates_[static_cast<std::size_t>(link)] = rates;
  }
  const Rates* rates(Link link) const noexcept { return rates_[static_cast<std::size_t>(link)]; }
  /// Why sm_kernel is `unsupported`; OK: it is not.
  const Status& kernel() const noexcept { return kernel_; }
  bool has_kernel() const noexcept { return kernel_.ok(); }
  unsigned ctas() const noexcept { return ctas_; }  ///< Of one kernel at most; 0: there is none.
  const cuda::Device& device() const noexcept { return device_; }

  /// copy_engine and sm_kernel. invalid_argument: more than max_pieces(), kPages or kPagedBytes. An
  /// error after the first
  /// copy was queued cannot take it back: the order is then in flight and ends with that error.
  Result<Ticket> start(const Order& order) override;
  /// Each warp of a kernel ends the entry that it copies and perhaps one more: at most 5 ms to
  /// host memory, 1 ms over NVLink. Copies that were queued run to their end.
  void abort(Ticket ticket) override;
  std::optional<Status> poll(Ticket ticket) override;
  base::Time expected(base::Time now) const override;  ///< Time::max(): nothing is in flight.

 private:
  static constexpr std::size_t kLine = 128;  // words of different writers lie so far apart
  static constexpr unsigned kExtraEntries =
      4;  // entries at most: two waits, the completion_flag, an event
  // Bytes of an order whose completion_flag `flag_stream` writes. More: 10 us until `flag_stream`
  // has seen the event are more than the 4 us that the copy engine stands still (1 GiB 0.992 ->
  // 0.996 of bare, H200).
  static constexpr std::uint64_t kMinFlagStreamBytes = 256u << 10, kMaxFlagStreamBytes = 64u << 20;

  /// What a kernel reads and writes flag_stream the data. All is in mapped host memory but the
  /// abort completion_flag, which every warp reads before every entry: over PCIe these reads take
  /// turns, 1.2 us each, and 8192 entries 10 ms (measured, H200). So abort() is a write in a stream
  /// of its own.
  struct KernelArgs {
    enum class State : std::uint8_t { idle, busy, aborting, clearing };
    Piece* list = nullptr;
    std::uint32_t* aborted = nullptr;  // by the kernel
    std::uint64_t* refused = nullptr;  // likewise: a page that leaves its memory (RefusedPage)
    std::uint64_t* cleared = nullptr;  // the abort completion_flag is zero again, and will stay so
    cuda::CUdeviceptr list_device = 0, aborted_device = 0, refused_device = 0, cleared_device = 0,
                      abort_flag = 0;
    State state = State::idle;
  };
  struct QueuedOrder {
    std::uint64_t number = 0;    // within the queue, from 1; zero: free
    unsigned entries = 0;        // in the stream, or to be; zero: never was there, and is quiet
    bool joined = false;         // others were put there with it,
    bool is_last = true;         // and this one is the last of them
    KernelArgs* args = nullptr;  // of a kernel; of joined ones the last one's
    Method* actual_method = nullptr;               // Order::actual_method, of one that waits
    std::uint64_t first = 0;                       // PageList::first
    Relay::RelayStreams* relay_streams = nullptr;  // of what took lent links:
    unsigned chunks = 0;                           // so many chunks
    Status status{};  // of the submission; the end of the order once it is quiet
    base::Time due{}, last_poll{};
  };
  /// Of 1 MiB between GPUs a completion_flag in the same stream takes 3.3 us of 8.4, this nothing;
  /// but the CPU makes two calls more, and what is small ends sooner than these are made (two
  /// H200).
  struct FlagStream {
    cuda::Stream stream;
    cuda::Event event;
  };
  /// Orders that are to go together. All are over one Link, to or from the GPU.
  struct JoinedOrders {
    struct JoinedPiece {
      std::uint64_t number = 0;  // whose it is
      Piece piece;
    };
    std::vector<JoinedPiece> parts;
    std::uint64_t bytes = 0;
    Link link = Link::host;
    bool to_gpu = false;
    unsigned ctas = 0;  // as the one permits that permits the fewest
  };
  struct CopyQueue {
    explicit CopyQueue(cuda::Stream s) : stream(std::move(s)) {}

    cuda::Stream stream;
    std::optional<FlagStream>
        flag_stream;  // writes the completion_flag of what is not alone; none of held streams
    std::uint64_t* completion_flag = nullptr;  // the number of the last order that has ended
    cuda::CUdeviceptr flag_address = 0;
    std::uint64_t submitted = 0, quiet = 0;  // numbers; what lies between is in flight
    std::uint64_t begun = 0;                 // of these the last one in the stream; others wait
    unsigned in_stream = 0;                  // submissions: joined orders are one
    std::uint64_t last_by_flag_stream =
        0;  // the last one of which `flag_stream` writes the completion_flag
    std::uint64_t user_stream = 0;  // the user's stream, of a queue for one
    unsigned entries = 0;           // in the stream or to be, by those in flight
    JoinedOrders waiting;
    std::array<QueuedOrder, kOrdersPerQueue> orders;
    std::array<KernelArgs, kKernelArgsPerQueue> kernel_args;
    base::Time last_due{}, next_query{};

    QueuedOrder& of(std::uint64_t number) { return orders[number % kOrdersPerQueue]; }
    const QueuedOrder& of(std::uint64_t number) const { return orders[number % kOrdersPerQueue]; }
  };
  /// How many entries reached the stream, and what kept the others from it.
  struct SubmitResult {
    unsigned entries = 0;
    Status status{};
    std::uint64_t relayed = 0;  // bytes, not by the queue's stream,
    unsigned chunks = 0;        // in so many chunks
    bool joined = true;         // which goes on after these, or else cannot tell their end
  };

  GpuCopier(const cuda::Device& device, Status kernel, unsigned ctas, const base::Clock& clock,
            cuda::PinnedBuffer memory, cuda::DeviceBuffer abort_flags, cuda::Stream aborts,
            std::vector<CopyQueue> queues);

  CopyQueue* choose_queue(
      const Order& order);  // null: all queues for held streams are actual_method
  SubmitResult queue_copies(const cuda::DeviceScope& scope, CopyQueue& queue, const Order& order,
                            Relay::RelayStreams* relay_streams);
  SubmitResult queue_kernel(const cuda::DeviceScope& scope, const CopyQueue& queue,
                            const KernelArgs& args, const Order& order, std::uint64_t bytes) const;
  Status write_completion_flag(const cuda::DeviceScope& scope, CopyQueue& queue,
                               std::uint64_t number, std::uint64_t bytes);
  // joined_copies.cpp
  static bool may_wait(const CopyQueue& queue, const Order& order, std::uint64_t bytes);
  void wait(CopyQueue& queue, std::uint64_t number, const Order& order, std::uint64_t bytes);
  void begin_waiting_if_due(CopyQueue& queue);
  bool begin_waiting(CopyQueue& queue);  // false: there is no room yet
  void end_unbegun(CopyQueue& queue, QueuedOrder& order, Status status);
  Status launch_pages(const cuda::DeviceScope& scope, const CopyQueue& queue,
                      const KernelArgs& args, const PageList& pages, unsigned most_ctas) const;
  static std::size_t args_bytes() noexcept;
  static KernelArgs carve_args(const cuda::PinnedBuffer& memory, std::size_t offset,
                               cuda::CUdeviceptr abort_flag);
  static KernelArgs* idle_args(CopyQueue& queue);
  void request_abort(KernelArgs& args);
  Status retire_args(KernelArgs& args, std::uint64_t first);  // what its kernel says

  QueuedOrder* find(Ticket ticket);
  void advance(CopyQueue& queue);  // takes note of what has ended, and begins what waits
  void poll_completion_flag(CopyQueue& queue);
  void retire(CopyQueue& queue, std::uint64_t up_to);
  void query_stream(CopyQueue& queue);
  void fail_all(const Status& cause);

  const cuda::Device& device_;
  const Status kernel_;
  const unsigned ctas_;  // of one kernel, at most
  const base::Clock& clock_;
  std::array<std::atomic<const Rates*>, 3> rates_{};  // by Link
  Status context_error_;                              // why the context is gone
  std::size_t unreported_ = 0;                        // quiet orders that poll() has not told
  Status relay_status_{Code::unsupported, Scope::request, "no links are lent"};
  std::unique_ptr<Relay> relay_;
  cuda::PinnedBuffer memory_;  // words and kernel_args
  cuda::DeviceBuffer abort_flags_;
  cuda::Stream aborts_;
  std::vector<Piece> joined_;      // begin_waiting()'s, which keeps its room
  std::vector<CopyQueue> queues_;  // last: its streams end before what they write to. The last
                                   // kStreamOrderedQueues are for what runs after streams of users
};

}  // namespace linkspan::copy
