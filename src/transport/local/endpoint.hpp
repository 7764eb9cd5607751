// transport/local/endpoint.hpp - one peer of this host: batches in flight, and copies for it.
//
// On the path of a byte: post() checks, asks route(), turns blocks into addresses and gives them to
// a copier; progress() polls the copiers. Where only the peer can reach both memories it is asked
// by message (`offer` once per region, then `execute`), and this side then runs what the peer asks.
// Where neither can, the batch crosses in chunks through memory of ours that both map: for each one
// inflight that takes two steps, one here and one by the peer (endpoint_bounce.cpp).
// Threads: under the scheduler's lock, but for queue_retract() and unmapped_here().
// Invariants: an in-flight batch ends only when its copier is quiet or the peer has said so or is
// gone.
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
  LocalEndpoint(LocalTransport& transport, const LocalAddress& peer, Channel& channel,
                unsigned copy_queue_index, base::Deadline deadline);
  LocalEndpoint(const LocalEndpoint&) = delete;
  LocalEndpoint& operator=(const LocalEndpoint&) = delete;
  ~LocalEndpoint() override;

  Status post(const Batch& batch) override;
  void cancel(std::uint64_t cookie) override;
  std::size_t progress(CompletionSink& sink) override;
  PollHint poll_hint() const override;
  Explanation explain(Op op, const memory::Region& local, const Mapping& remote,
                      BatchSummary shape) const override;
  std::string describe_paths() const override;
  Status on_message(std::uint16_t op, std::span<const std::byte> bytes,
                    std::span<base::Fd> fds) override;
  void stop_serving() override { serves_ = false; }
  void close() override;
  void peer_terminated() override;
  /// Its process has ended, and what was copied for it here.
  bool drained() const override { return terminated_ && for_peer_ == 0; }

  /// Any thread: the peer is to be told that our region is dead. False: there is no peer to tell.
  bool queue_retract(std::uint64_t serial, bool revoke_immediately)
      LINKSPAN_EXCLUDES(retract_mutex_);
  /// Any thread: nothing here maps the peer's region any more. The peer hears it if it waits.
  void unmapped_here(std::uint64_t serial) LINKSPAN_EXCLUDES(retract_mutex_);
  std::uint64_t peer_incarnation() const noexcept { return peer_.incarnation; }
  std::string peer_name() const { return std::string(channel_.peer_name()); }

 private:
  static constexpr std::uint32_t kNoFlag = ~std::uint32_t{0};
  /// Offers whose keys are being opened. Each comes just before the first request to execute on it,
  /// and of requests there are at most Capabilities::max_inflight.
  static constexpr std::size_t kMaxOpening = 512;
  /// Chunks of all bounces that a peer is asked for, beside the batches.
  static constexpr std::size_t kMaxBounceSteps = 64;

  /// A region of the peer's that it offered, so that we copy for it.
  struct OfferedRegion {
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
  /// What a batch that goes through one has beside its InflightBatch.
  struct BouncedBatch {
    Route route;
    std::shared_ptr<BounceBuffer> buffer;  // also the Endpoint's and of the task that makes it
    BounceMemory* memory = nullptr;        // of it, once it is made
    std::size_t next = 0;                  // blocks before it are in steps or done,
    std::uint64_t next_offset = 0;         // and so many bytes of that one
    unsigned steps = 0;                    // in flight
    bool restart = false;                  // from the start, another way
  };
  enum class BatchState : std::uint8_t {
    opening,         // for the peer: its offer is being opened
    bouncing,        // its steps run
    starting_phase,  // a phase of a step is to be started
    copying,         // some pieces are with a copier, or wait for room there
    requested,       // the peer executes it
    ended,           // quiet; to be told
  };
  struct InflightBatch {
    std::uint64_t id = 0;          // ours: the cookie; for the peer: its own
    std::uint64_t request_id = 0;  // ours: as the peer was asked for it
    bool for_peer = false;
    bool canceled = false;
    bool cancel_sent = false;
    BatchState state = BatchState::copying;
    Op op = Op::write;
    PathTaken path;
    PathTaken* reported_path = nullptr;  // Batch::path_taken
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
    copy::Ticket ticket = 0;                  // 0: nothing is with the copier
    std::size_t blocks_with_copier = 0;       // blocks that are
    std::uint64_t offered_serial = 0;         // our serial that the peer was asked with
    std::uint32_t completion_flag = kNoFlag;  // ours, or the peer's, of a copy that is asked for
    base::Time due{}, polled{};               // of one that was asked for: no end comes before
    std::shared_ptr<ImportedMemory> remote;   // also the engine's Mapping or the OfferedRegion
    std::shared_ptr<PublishedRegion> target;  // here; also the transport's, whose retract() waits
                                              // for the `uses` for peers
    std::shared_ptr<OfferedRegion> offer;     // for the peer only; also the task's that opens it
    std::vector<Block> blocks;                // of all that this side does not execute alone
    std::unique_ptr<BouncedBatch> bounced;
    // Of a step: the batch that it is of, which outlives it, and its chunk of the bounce memory.
    InflightBatch* parent = nullptr;
    unsigned chunk = 0;
    bool second_phase = false;  // it takes the second of its two hops
    Status end;
  };

  RouteFacts facts(Op op, const PublishedRegion& local, const ImportedMemory& remote,
                   BatchSummary shape, bool for_peer) const;
  Status ready() const;
  Status begin(InflightBatch& inflight, const PublishedRegion& local, CheckedShape shape,
               const StreamDependencies& streams);
  void place(InflightBatch& inflight, std::uint64_t here, std::uint64_t there,
             std::span<const Block> blocks);
  void place(InflightBatch& inflight, std::uint64_t here, std::uint64_t there, const Pages& pages);
  Status ask_peer(InflightBatch& inflight, const PublishedRegion& local,
                  std::uint64_t remote_serial, std::span<const Block> blocks);
  Status share_completion_flags();
  void poll_completion_flag(InflightBatch& inflight);
  void release_completion_flag(InflightBatch& inflight);
  void expect_end(InflightBatch& inflight, copy::Method method, copy::Link link,
                  std::uint64_t bytes);
  static void stop(InflightBatch& inflight);
  static bool touches_private_memory(const InflightBatch& inflight);
  Status start_some(InflightBatch& inflight, const StreamDependencies& streams = {});
  void advance(InflightBatch& inflight);
  void open_offer(InflightBatch& inflight);
  bool report(InflightBatch& inflight, CompletionSink& sink);
  void send_pending() LINKSPAN_EXCLUDES(retract_mutex_);
  std::optional<Duration> wait_to_send() const LINKSPAN_EXCLUDES(retract_mutex_);
  bool send_retract(std::uint64_t serial, bool revoke_immediately);
  bool send_retracted(std::uint64_t serial);
  Status send(LocalMessage message, std::span<const std::byte> bytes, std::span<base::Fd> fds = {});
  Status may_copy_across() const;
  /// OK, or why process_vm_readv does not reach the peer.
  Status cross_process() const;
  // endpoint_bounce.cpp
  void start_bounce(InflightBatch& inflight, const Route& chosen);
  void reroute_bounce(InflightBatch& inflight, const Status& why);
  void add_steps(InflightBatch& parent);
  void add_step(InflightBatch& parent, unsigned chunk);
  void start_phase(InflightBatch& step);
  bool advance_phase(InflightBatch& step);
  void finish_step(InflightBatch& step);
  PollHint bounce_poll_hint(const InflightBatch& parent, base::Time now) const;
  const cuda::Device* own_device(const PublishedRegion& local) const;

  Status on_offer(std::span<const std::byte> bytes, std::span<base::Fd> fds);
  Status on_execute(std::span<const std::byte> bytes);
  Status on_executed(std::span<const std::byte> bytes);
  Status on_cancel(std::span<const std::byte> bytes);
  Status on_retract(std::span<const std::byte> bytes);
  Status on_retracted(std::span<const std::byte> bytes);
  Status on_completion_flags(std::span<base::Fd> fds);

  LocalTransport& transport_;
  const LocalAddress peer_;
  Channel& channel_;
  const unsigned copy_queue_index_;
  copy::ProcessProof proof_;    // numbers of processes lie across pid namespaces
  const Status cross_process_;  // when they met; cross_process() knows better
  bool serves_ = true, closed_ = false, terminated_ = false;
  base::Time last_asked_due_{};  // the peer runs what it is asked one after the other
  std::list<InflightBatch> inflight_;
  std::size_t ours_ = 0, steps_ = 0, for_peer_ = 0;  // of inflight_
  std::uint64_t last_asked_ = 0;
  std::map<const cuda::Device*, std::shared_ptr<BounceBuffer>> bounce_buffers_;  // null: the host's
  Status gpu_bounce_buffer_;                           // why there is none of a GPU
  std::map<std::uint64_t, std::string> unopened_;      // why the peer cannot map ours, by serial
  std::set<std::uint64_t> offered_;                    // serials of ours that the peer has a key of
  std::unique_ptr<CompletionFlags> completion_flags_;  // null: nothing was asked of the peer yet
  std::unique_ptr<CompletionFlagsView> peers_completion_flags_;     // null: the peer has sent none
  std::map<std::uint64_t, std::shared_ptr<OfferedRegion>> offers_;  // by the peer's serial
  // Of these are not open yet; also of the tasks that open them, which may outlive the Endpoint.
  const std::shared_ptr<std::atomic<std::size_t>> opening_ =
      std::make_shared<std::atomic<std::size_t>>(0);
  // The peer's serials whose memory goes away although batches still use it here.
  std::set<std::uint64_t> unmap_pending_;

  mutable base::Mutex retract_mutex_;
  std::deque<std::pair<std::uint64_t, bool>> retracts_ LINKSPAN_GUARDED_BY(retract_mutex_);
  // The peer's serials that it waits to hear `retracted` of: those that are mapped here, and those
  // that are to be answered. What finds no room in the channel waits in its place, and nothing
  // behind it is tried.
  std::set<std::uint64_t> retracted_by_peer_ LINKSPAN_GUARDED_BY(retract_mutex_);
  std::deque<std::uint64_t> retracted_replies_ LINKSPAN_GUARDED_BY(retract_mutex_);
  std::atomic<bool> any_queued_{false};        // of these; or just now
  std::atomic<bool> retracts_refused_{false};  // closed or gone
};

}  // namespace linkspan::transport::local
