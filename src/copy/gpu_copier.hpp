// copy/gpu_copier.hpp - copies by one GPU: by its copy engines or by a kernel on its SMs.
//
// A lane is a CUDA stream and a word in pinned memory. An order is put into the stream (copies or
// one kernel), and behind it the order's number is written to the lane's word, by a stream beside
// it where the lane's would stand still for that between two orders. Orders of a lane end in order,
// so a word that has reached N says that all up to N are quiet. Small orders that come while others
// are in the stream go together, as one (joined_copies.cpp). poll() reads the word and calls no
// driver, but for those that have waited, and for an order that took lent links
// (copy/relay.hpp). Only when it is overdue is the stream asked, and a lost context then ends every
// order of the device with its real cause. What runs after a stream of the user's goes into a lane
// that waits for that stream only: it may stand still, and nobody else with it.
// Threads: externally synchronised (under the scheduler's lock);
// create() is OFF THE LOCK. Invariants: all memory, streams and lists are made in create(); a
// stream never holds more than kStreamEntries, so a submission never blocks in the driver; a kernel
// slot is free again only when the kernel that reads it has ended.
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
  static constexpr unsigned kOrdersPerLane = 256;
  /// Copies, kernels and writes of words. CUDA's stream takes about 1021 and then blocks the
  /// caller (docs/cuda_notes.md, "queues").
  static constexpr unsigned kStreamEntries = 512;
  static constexpr unsigned kListEntries = 16384;
  /// Of an order of pages, whose list is two indices a page.
  static constexpr unsigned kPages = kListEntries * sizeof(Piece) / (2 * sizeof(std::uint32_t));
  static constexpr std::uint64_t kPagedBytes = std::uint64_t{1} << 40;
  static constexpr unsigned kSlotsPerLane = 4;
  /// So many streams of users can stand still at a time; of others the orders are not taken.
  static constexpr unsigned kHeldLanes = 8;
  /// While something is in the stream of a lane, small orders wait to join each other: until poll()
  /// finds fewer submissions than this there, or start() so much that it looks itself.
  static constexpr unsigned kAtOnce = 2;
  static constexpr std::uint64_t kEnoughBytes = 4u << 20;
  static constexpr std::size_t kEnoughPieces = 64;
  static constexpr std::size_t kJoinedPieces = 16;                ///< Of a small order.
  static constexpr std::uint64_t kJoinedBytes = kRelayLeast - 1;  ///< Likewise.
  static constexpr std::uint64_t kJoinedBytesOfAll = 64u << 20;   ///< That wait in a lane.
  /// What one warp copies of a kernel's list.
  static constexpr std::uint64_t kListBytes = std::uint64_t{64} << 10;
  /// Copies are cut so. One that runs cannot be stopped: each is about 1 ms of its link. Each cut
  /// costs 2.4 us, of 1 GiB between GPUs 2 % at 64 MiB and 0.4 % at 256 MiB (two H200).
  static constexpr std::uint64_t copy_bytes(Link link) noexcept {
    return std::uint64_t{link == Link::host ? 64u : 512u} << 20;
  }

  struct Bounds {
    unsigned lanes = 4;
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
    return method == Method::sm_kernel ? kListEntries : kStreamEntries - kBesideCopies;
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
  void lend(Result<std::unique_ptr<Relay>> relay);
  /// Why none is lent; OK: links() are taken from kRelayLeast on.
  const Status& relay() const noexcept { return no_relay_; }
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
  static constexpr std::size_t kLine = 128;     // words of different writers lie so far apart
  static constexpr unsigned kBesideCopies = 4;  // entries at most: two waits, the word, an event
  // Bytes of an order whose word `beside` writes. More: 10 us until `beside` has seen the event
  // are more than the 4 us that the copy engine stands still (1 GiB 0.992 -> 0.996 of bare, H200).
  static constexpr std::uint64_t kBesideLeast = 256u << 10, kBesideMost = 64u << 20;

  /// What a kernel reads and writes beside the data. All is in mapped host memory but the abort
  /// word, which every warp reads before every entry: over PCIe these reads take turns, 1.2 us
  /// each, and 8192 entries 10 ms (measured, H200). So abort() is a write in a stream of its own.
  struct Slot {
    enum class State : std::uint8_t { idle, busy, aborting, clearing };
    Piece* list = nullptr;
    std::uint32_t* aborted = nullptr;  // by the kernel
    std::uint64_t* refused = nullptr;  // likewise: a page that leaves its memory (RefusedPage)
    std::uint64_t* cleared = nullptr;  // the abort word is zero again, and will stay so
    cuda::CUdeviceptr list_device = 0, aborted_device = 0, refused_device = 0, cleared_device = 0,
                      abort_word = 0;
    State state = State::idle;
  };
  struct Running {
    std::uint64_t number = 0;   // within the lane, from 1; zero: free
    unsigned entries = 0;       // in the stream, or to be; zero: never was there, and is quiet
    bool joined = false;        // others were put there with it,
    bool is_last = true;        // and this one is the last of them
    Slot* slot = nullptr;       // of a kernel; of joined ones the last one's
    Method* taken = nullptr;    // Order::taken, of one that waits
    std::uint64_t first = 0;    // PageList::first
    Relay::Way* way = nullptr;  // of what took lent links:
    unsigned chunks = 0;        // so many chunks
    Status status{};            // of the submission; the end of the order once it is quiet
    base::Time due{}, looked{};
  };
  /// Of 1 MiB between GPUs a word in the same stream takes 3.3 us of 8.4, this nothing; but the CPU
  /// makes two calls more, and what is small ends sooner than these are made (two H200).
  struct Beside {
    cuda::Stream stream;
    cuda::Event event;
  };
  /// Orders that are to go together. All are over one Link, to or from the GPU.
  struct Waiting {
    struct Part {
      std::uint64_t number = 0;  // whose it is
      Piece piece;
    };
    std::vector<Part> parts;
    std::uint64_t bytes = 0;
    Link link = Link::host;
    bool to_gpu = false;
    unsigned ctas = 0;  // as the one permits that permits the fewest
  };
  struct Lane {
    explicit Lane(cuda::Stream s) : stream(std::move(s)) {}

    cuda::Stream stream;
    std::optional<Beside> beside;   // writes the word of what is not alone; none of held streams
    std::uint64_t* word = nullptr;  // the number of the last order that has ended
    cuda::CUdeviceptr word_device = 0;
    std::uint64_t submitted = 0, quiet = 0;  // numbers; what lies between is in flight
    std::uint64_t begun = 0;                 // of these the last one in the stream; others wait
    unsigned in_stream = 0;                  // submissions: joined orders are one
    std::uint64_t by_beside = 0;             // the last one of which `beside` writes the word
    std::uint64_t held_by = 0;               // the user's stream, of a lane for one
    unsigned entries = 0;                    // in the stream or to be, by those in flight
    Waiting waiting;
    std::array<Running, kOrdersPerLane> orders;
    std::array<Slot, kSlotsPerLane> slots;
    base::Time last_due{}, next_query{};

    Running& of(std::uint64_t number) { return orders[number % kOrdersPerLane]; }
    const Running& of(std::uint64_t number) const { return orders[number % kOrdersPerLane]; }
  };
  /// How many entries reached the stream, and what kept the others from it.
  struct Queued {
    unsigned entries = 0;
    Status status{};
    std::uint64_t relayed = 0;  // bytes, not by the lane's stream,
    unsigned chunks = 0;        // in so many chunks
    bool joined = true;         // which goes on after these, or else cannot tell their end
  };

  GpuCopier(const cuda::Device& device, Status kernel, unsigned ctas, const base::Clock& clock,
            cuda::PinnedBuffer memory, cuda::DeviceBuffer abort_words, cuda::Stream aborts,
            std::vector<Lane> lanes);

  Lane* lane_of(const Order& order);  // null: all lanes for held streams are taken
  Queued queue_copies(const cuda::DeviceScope& scope, Lane& lane, const Order& order,
                      Relay::Way* way);
  Queued queue_kernel(const cuda::DeviceScope& scope, const Lane& lane, const Slot& slot,
                      const Order& order, std::uint64_t bytes) const;
  Status write_word(const cuda::DeviceScope& scope, Lane& lane, std::uint64_t number,
                    std::uint64_t bytes);
  // joined_copies.cpp
  static bool may_wait(const Lane& lane, const Order& order, std::uint64_t bytes);
  void wait(Lane& lane, std::uint64_t number, const Order& order, std::uint64_t bytes);
  void begin_waiting_if_due(Lane& lane);
  bool begin_waiting(Lane& lane);  // false: there is no room yet
  void end_unbegun(Lane& lane, Running& order, Status status);
  Status launch_pages(const cuda::DeviceScope& scope, const Lane& lane, const Slot& slot,
                      const PageList& pages, unsigned most_ctas) const;
  static std::size_t slot_bytes() noexcept;
  static Slot carve_slot(const cuda::PinnedBuffer& memory, std::size_t offset,
                         cuda::CUdeviceptr abort_word);
  static Slot* idle_slot(Lane& lane);
  void ask_to_stop(Slot& slot);
  Status retire_slot(Slot& slot, std::uint64_t first);  // what its kernel says

  Running* find(Ticket ticket);
  void advance(Lane& lane);  // takes note of what has ended, and begins what waits
  void look_at_word(Lane& lane);
  void retire(Lane& lane, std::uint64_t up_to);
  void ask_stream(Lane& lane);
  void lose(const Status& cause);

  const cuda::Device& device_;
  const Status kernel_;
  const unsigned ctas_;  // of one kernel, at most
  const base::Clock& clock_;
  std::array<std::atomic<const Rates*>, 3> rates_{};  // by Link
  Status lost_;                                       // why the context is gone
  std::size_t untold_ = 0;                            // quiet orders that poll() has not told
  Status no_relay_{Code::unsupported, Scope::request, "no links are lent"};
  std::unique_ptr<Relay> relay_;
  cuda::PinnedBuffer memory_;  // words and slots
  cuda::DeviceBuffer abort_words_;
  cuda::Stream aborts_;
  std::vector<Piece> joined_;  // begin_waiting()'s, which keeps its room
  std::vector<Lane> lanes_;    // last: its streams end before what they write to. The last
                               // kHeldLanes are for what runs after streams of users
};

}  // namespace linkspan::copy
