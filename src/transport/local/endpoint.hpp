// transport/local/endpoint.hpp - one peer of this host: batches in flight, and copies for it.
//
// On the path of a byte: post() checks, asks route(), turns blocks into addresses and gives them to
// a copier; progress() polls the copiers. Where only the peer can reach both memories it is asked
// by message (`offer` once per region, then `execute`), and this side then runs what the peer asks.
// Where neither can, the batch crosses in chunks through memory of ours that both map: for each one
// slot that takes two legs, one here and one by the peer (endpoint_bounce.cpp).
// Threads: under the scheduler's lock, but for tell_retract() and closed_here().
// Invariants: a slot ends only when its copier is quiet or the peer has said so or is gone.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "transport/batch.hpp"
#include "transport/local/bounce.hpp"
#include "transport/local/completion_flags.hpp"
#include "transport/local/local_transport.hpp"
#include "transport/local/wire.hpp"

namespace linkspan::transport::local {

class LocalEndpoint final : public Endpoint {
 public:
  LocalEndpoint(LocalTransport& transport, const Address& peer, Channel& channel, unsigned lane,
                base::Deadline deadline);
  LocalEndpoint(const LocalEndpoint&) = delete;
  LocalEndpoint& operator=(const LocalEndpoint&) = delete;
  ~LocalEndpoint() override;

  Status post(const Batch& batch) override;
  void cancel(std::uint64_t cookie) override;
  std::size_t progress(CompletionSink& sink) override;
  PollHint poll_hint() const override;
  Explanation explain(Op op, const memory::Region& local, const Mapping& remote,
                      Shape shape) const override;
  std::string outlook() const override;
  Status on_message(std::uint16_t op, std::span<const std::byte> bytes,
                    std::span<base::Fd> fds) override;
  void serve_no_more() override { serves_ = false; }
  void close() override;
  void peer_gone() override;
  /// Its process has ended, and what was copied for it here.
  bool landed() const override { return gone_ && for_peer_ == 0; }

  /// Any thread: the peer is to be told that our region is dead. False: there is no peer to tell.
  bool tell_retract(std::uint64_t serial, bool at_once) LINKSPAN_EXCLUDES(retract_mutex_);
  /// Any thread: nothing here maps the peer's region any more. The peer hears it if it waits.
  void closed_here(std::uint64_t serial) LINKSPAN_EXCLUDES(retract_mutex_);
  std::uint64_t peer_incarnation() const noexcept { return peer_.incarnation; }
  std::string peer_name() const { return std::string(channel_.peer_name()); }

 private:
  static constexpr std::uint32_t kNoWord = ~std::uint32_t{0};
  /// Offers whose keys are being opened. Each comes just before the first request to execute on it,
  /// and of requests there are at most Capabilities::max_inflight.
  static constexpr std::size_t kMaxOpening = 512;
  /// Chunks of all bounces that a peer is asked for, beside the batches.
  static constexpr std::size_t kMaxLegs = 64;

  /// A region of the peer's that it offered, so that we copy for it.
  struct Offer {
    base::Mutex mutex;
    bool opened LINKSPAN_GUARDED_BY(mutex) = false;
    Status status LINKSPAN_GUARDED_BY(mutex);
    std::shared_ptr<ImportedMemory> memory LINKSPAN_GUARDED_BY(mutex);

    bool failed() LINKSPAN_EXCLUDES(mutex) {  // the peer may offer it again
      const base::MutexLock lock(mutex);
      return opened && !status.ok();
    }
  };
  /// Bounce memory, which a task makes off the lock.
  struct BounceBuffer {
    base::Mutex mutex;
    bool made LINKSPAN_GUARDED_BY(mutex) = false;
    Status status LINKSPAN_GUARDED_BY(mutex);
    std::unique_ptr<BounceMemory> memory LINKSPAN_GUARDED_BY(mutex);
  };
  /// What a batch that goes through one has beside its Slot.
  struct BouncedBatch {
    Route way;
    std::shared_ptr<BounceBuffer> bay;  // also the Endpoint's and of the task that makes it
    BounceMemory* memory = nullptr;     // of it, once it is made
    std::size_t next = 0;               // blocks before it are in legs or done,
    std::uint64_t cut = 0;              // and so many bytes of that one
    unsigned legs = 0;                  // in flight
    bool again = false;                 // from the start, another way
  };
  enum class Stage : std::uint8_t {
    opening,   // for the peer: its offer is being opened
    crossing,  // its legs run
    turning,   // a leg is to be started
    running,   // some pieces are with a copier, or wait for room there
    asked,     // the peer executes it
    ended,     // quiet; to be told
  };
  struct Slot {
    std::uint64_t id = 0;     // ours: the cookie; for the peer: its own
    std::uint64_t asked = 0;  // ours: as the peer was asked for it
    bool for_peer = false;
    bool canceled = false;
    bool cancel_sent = false;
    Stage stage = Stage::running;
    Op op = Op::write;
    PathTaken way;
    PathTaken* told = nullptr;  // Batch::way
    Mapped mapped = Mapped::nothing;
    std::vector<copy::Piece> pieces;
    copy::PageList pages;                // instead of pieces; in one order
    std::vector<std::uint32_t> indices;  // of pages that wait for room with the copier
    const PinnedPages* kept = nullptr;   // or where these lie already,
    std::uint64_t first = 0;             // from there on; and how an error counts pages
    std::size_t next = 0;                // pieces before it are with the copier or done
    copy::Method method = copy::Method::cpu_threads;
    copy::Link link = copy::Link::host;
    unsigned ctas = TransferHints{}.ctas;
    const cuda::Device* device = nullptr;
    copy::Copier* copier = nullptr;
    copy::Ticket ticket = 0;                 // 0: nothing is with the copier
    std::size_t under_way = 0;               // blocks that are
    std::uint64_t offered = 0;               // our serial that the peer was asked with
    std::uint32_t tally_word = kNoWord;      // ours, or the peer's, of a copy that is asked for
    base::Time due{}, looked{};              // of one that was asked for: no end comes before
    std::shared_ptr<ImportedMemory> remote;  // also the engine's Mapping or the Offer
    std::shared_ptr<Published> target;  // here; also the transport's, whose retract() waits for
                                        // the `uses` for peers
    std::shared_ptr<Offer> offer;       // for the peer only; also the task's that opens it
    std::vector<Block> blocks;          // of all that this side does not execute alone
    std::unique_ptr<BouncedBatch> crossing;
    // Of a leg: the batch that it is of, which outlives it, and its chunk of the bounce memory.
    Slot* whole = nullptr;
    unsigned chunk = 0;
    bool second = false;  // it takes the second of its two hops
    Status end;
  };

  RouteFacts facts(Op op, const Published& local, const ImportedMemory& remote, Shape shape,
                   bool for_peer) const;
  Status ready() const;
  Status begin(Slot& slot, const Published& local, Checked asked,
               const StreamDependencies& streams);
  void place(Slot& slot, std::uint64_t here, std::uint64_t there, std::span<const Block> blocks);
  void place(Slot& slot, std::uint64_t here, std::uint64_t there, const Pages& pages);
  Status ask_peer(Slot& slot, const Published& local, std::uint64_t remote_serial,
                  std::span<const Block> blocks);
  Status share_tally();
  void look_at_tally(Slot& slot);
  void release_word(Slot& slot);
  void expect_end(Slot& slot, copy::Method method, copy::Link link, std::uint64_t bytes);
  static void stop(Slot& slot);
  static bool touches_private_memory(const Slot& slot);
  Status start_some(Slot& slot, const StreamDependencies& streams = {});
  void advance(Slot& slot);
  void open_offer(Slot& slot);
  bool report(Slot& slot, CompletionSink& sink);
  void send_pending() LINKSPAN_EXCLUDES(retract_mutex_);
  std::optional<Duration> wait_to_send() const LINKSPAN_EXCLUDES(retract_mutex_);
  bool send_retract(std::uint64_t serial, bool at_once);
  bool send_retracted(std::uint64_t serial);
  Status send(Message message, std::span<const std::byte> bytes, std::span<base::Fd> fds = {});
  Status may_copy_across() const;
  /// OK, or why process_vm_readv does not reach the peer.
  Status cross_process() const;
  // endpoint_bounce.cpp
  void cross(Slot& slot, const Route& way);
  void cross_another_way(Slot& slot, const Status& why);
  void add_legs(Slot& whole);
  void add_leg(Slot& whole, unsigned chunk);
  void start_hop(Slot& leg);
  bool turn(Slot& leg);
  void land(Slot& leg);
  PollHint look_at_crossing(const Slot& whole, base::Time now) const;
  const cuda::Device* own_device(const Published& local) const;

  Status on_offer(std::span<const std::byte> bytes, std::span<base::Fd> fds);
  Status on_execute(std::span<const std::byte> bytes);
  Status on_executed(std::span<const std::byte> bytes);
  Status on_cancel(std::span<const std::byte> bytes);
  Status on_retract(std::span<const std::byte> bytes);
  Status on_retracted(std::span<const std::byte> bytes);
  Status on_tally(std::span<base::Fd> fds);

  LocalTransport& transport_;
  const Address peer_;
  Channel& channel_;
  const unsigned lane_;
  copy::ProcessProof proof_;    // numbers of processes lie across pid namespaces
  const Status cross_process_;  // when they met; cross_process() knows better
  bool serves_ = true, closed_ = false, gone_ = false;
  base::Time last_asked_due_{};  // the peer runs what it is asked one after the other
  std::list<Slot> slots_;
  std::size_t ours_ = 0, legs_ = 0, for_peer_ = 0;  // of slots_
  std::uint64_t last_asked_ = 0;
  std::map<const cuda::Device*, std::shared_ptr<BounceBuffer>> bounce_buffers_;  // null: the host's
  Status gpu_bounce_buffer_;                           // why there is none of a GPU
  std::map<std::uint64_t, std::string> unopened_;      // why the peer cannot map ours, by serial
  std::set<std::uint64_t> offered_;                    // serials of ours that the peer has a key of
  std::unique_ptr<CompletionFlags> completion_flags_;  // null: nothing was asked of the peer yet
  std::unique_ptr<CompletionFlagsView> peers_completion_flags_;  // null: the peer has sent none
  std::map<std::uint64_t, std::shared_ptr<Offer>> offers_;       // by the peer's serial
  // Of these are not open yet; also of the tasks that open them, which may outlive the Endpoint.
  const std::shared_ptr<std::atomic<std::size_t>> opening_ =
      std::make_shared<std::atomic<std::size_t>>(0);
  // The peer's serials whose memory goes away although batches still use it here.
  std::set<std::uint64_t> leaving_;

  mutable base::Mutex retract_mutex_;
  std::deque<std::pair<std::uint64_t, bool>> to_retract_ LINKSPAN_GUARDED_BY(retract_mutex_);
  // The peer's serials that it waits to hear `retracted` of: those that are mapped here, and those
  // that are to be answered. What finds no room in the channel waits in its place, and nothing
  // behind it is tried.
  std::set<std::uint64_t> dying_ LINKSPAN_GUARDED_BY(retract_mutex_);
  std::deque<std::uint64_t> to_answer_ LINKSPAN_GUARDED_BY(retract_mutex_);
  std::atomic<bool> any_to_send_{false};  // of these; or just now
  std::atomic<bool> deaf_{false};         // closed or gone
};

}  // namespace linkspan::transport::local
