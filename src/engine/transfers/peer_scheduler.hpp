// engine/transfers/peer_scheduler.hpp - the bookkeeping of one peer: its transfers and messages.
//
// On the path of a byte: submit() queues, pump() posts batches to an Endpoint, progress() collects
// completions and ends transfers. The thread that has the lock does the work: a user's thread that
// submits or waits, else the ProgressThread.
// Threads: any thread. Nothing blocks under the mutex except wait(), which releases it. Objects
// that have ended are destroyed without it, by poll().
// Invariants: a transfer becomes quiet exactly once; a batch in flight keeps its regions alive. A
// transfer with one peer never waits for the bookkeeping of another.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/mutex.hpp"
#include "engine/diagnostics/metrics.hpp"
#include "engine/messages/rendezvous.hpp"
#include "engine/peers/frame_sender.hpp"
#include "engine/peers/peer_endpoints.hpp"
#include "engine/registration/keys.hpp"
#include "engine/transfers/batch_table.hpp"
#include "engine/transfers/stream_waits.hpp"
#include "engine/transfers/transfer.hpp"
#include "linkspan/peer.hpp"

namespace linkspan::engine {

class PeerScheduler;

/// Receives what PeerSchedulers report to their Engine. Threads: any thread, also under their
/// mutexes.
class SchedulerEvents {
 public:
  virtual std::uint64_t new_transfer_id() noexcept = 0;  ///< Unique in the Engine, from 1.
  /// Makes the Engine call progress() and poll() of that peer until poll() says that it is idle.
  virtual void activate(PeerScheduler& peer) noexcept = 0;
  /// Called when a transfer has become quiet, for those that wait for more than one.
  virtual void on_quiet() noexcept = 0;

 protected:
  ~SchedulerEvents() = default;
};

/// Names what close() waits for, in this order: transfers that are not quiet, copies for peers,
/// peers that may still copy on our memory, and messages to remote peers that are not sent.
enum class CloseBlocker : std::uint8_t { transfers, copies, memory, messages };

/// Returns the status of operations with a peer that is not connected any more.
Status not_connected(std::uint64_t peer);

class PeerScheduler final : private RendezvousHost {
 public:
  static constexpr std::size_t kMaxTransfers = 16384;  ///< Transfers that are not quiet.

  /// The arguments outlive this object.
  PeerScheduler(std::shared_ptr<control::Session> session, SchedulerEvents& events,
                const Transports& transports, const base::Log& log)
      : events_(events),
        transports_(transports),
        log_(log),
        session_(std::move(session)),
        frames_(session_),
        endpoints_(transports.size()) {}

  const std::shared_ptr<control::Session>& session() const noexcept { return session_; }
  std::uint64_t id() const noexcept { return session_->id(); }
  /// Set while the Engine calls poll(). SchedulerEvents' own.
  std::atomic<bool> active{false};

  // peer_scheduler_end.cpp: the peer's begin and end
  void add_endpoint(std::size_t transport, std::unique_ptr<transport::Channel> channel,
                    std::unique_ptr<transport::Endpoint> endpoint) LINKSPAN_EXCLUDES(mutex_);
  PeerState state() LINKSPAN_EXCLUDES(mutex_);  ///< `lost` also once this side closes it.
  bool is_connected() LINKSPAN_EXCLUDES(mutex_);
  bool closing() LINKSPAN_EXCLUDES(mutex_);  ///< close() was called.
  /// Returns OK if operations with the peer may begin, else disconnected with the reason.
  Status may_begin() LINKSPAN_EXCLUDES(mutex_);
  void on_lost() LINKSPAN_EXCLUDES(mutex_);
  void on_gone() LINKSPAN_EXCLUDES(mutex_);
  /// Refuses submissions with `why`, and requests of the peer, and cancels all transfers.
  void refuse(const Status& why) LINKSPAN_EXCLUDES(mutex_);
  /// Does the same because this side closes the peer. Returns false if the peer is gone.
  bool close() LINKSPAN_EXCLUDES(mutex_);
  /// Returns whether Peer::close() still has to wait. In the last steps it waits until the peer is
  /// gone. Copies over a network end with the connection and are not waited for.
  bool blocks_its_close(CloseBlocker blocker) LINKSPAN_EXCLUDES(mutex_);
  /// Returns whether Engine::close() still has to wait for this peer.
  bool blocks_engine_close(CloseBlocker blocker) LINKSPAN_EXCLUDES(mutex_);
  /// Closes every Endpoint. Requires close() and nothing in flight, or the end of the process.
  void close_endpoints() LINKSPAN_EXCLUDES(mutex_);
  /// Sends a notification. Errors as Session::notify() and may_begin().
  Status notify(std::span<const std::byte> message) LINKSPAN_EXCLUDES(mutex_);
  Status on_transport_message(const control::TransportMessage& message, std::span<base::Fd> fds)
      LINKSPAN_EXCLUDES(mutex_);
  Status on_data_connection(std::string_view transport, Result<base::AuthenticatedSocket> socket)
      LINKSPAN_EXCLUDES(mutex_);

  // peer_scheduler.cpp, peer_scheduler_progress.cpp: transfers
  /// Queues the transfer and posts the batches that have room. On error nothing was started. The
  /// transfer may be quiet on return, as the caller copies what is small.
  Status submit(const std::shared_ptr<TransferState>& transfer) LINKSPAN_EXCLUDES(mutex_);
  /// Asks for an early end. The transfer may be quiet on return.
  void cancel(TransferState& transfer) LINKSPAN_EXCLUDES(mutex_);
  /// Cancels all transfers of this side that use that registration.
  void cancel_all_on(const memory::Registration& registration) LINKSPAN_EXCLUDES(mutex_);
  /// Makes progress until the transfer is quiet or `limit` is reached. `begin` is now.
  void wait(const TransferState& transfer, base::Time begin, base::Time limit)
      LINKSPAN_EXCLUDES(mutex_);
  /// Makes the queue get `cookie` at the end of the transfer, or at once if it is quiet.
  void attach(TransferState& transfer, std::shared_ptr<CompletionQueueState> queue,
              std::uint64_t cookie) LINKSPAN_EXCLUDES(mutex_);
  /// Ends the time in which the transfer's batch may record a release event.
  StreamRelease release_stream(TransferState& transfer, std::shared_ptr<StreamBlocker> blocker)
      LINKSPAN_EXCLUDES(mutex_);
  Result<Explanation> explain(const TransferEndpoints& between, const transport::BatchSummary& size)
      LINKSPAN_EXCLUDES(mutex_);
  /// Makes progress and returns how many transfers became quiet.
  std::size_t progress(base::Time now) LINKSPAN_EXCLUDES(mutex_);
  /// Makes progress, unless another thread does.
  void try_progress(base::Time now) noexcept LINKSPAN_EXCLUDES(mutex_);
  struct Polled {
    transport::PollHint hint;  ///< When progress() has something to do again.
    bool over = false;         ///< The peer is gone and nothing of it is in flight.
    bool rested = false;       ///< No transfer began since the last poll().
  };
  /// Makes progress, unless another thread does, and destroys objects that have ended. Is patient
  /// where a user's thread has looked since the last call, because that is likely to look again.
  Polled poll(base::Time now) LINKSPAN_EXCLUDES(mutex_);
  /// Returns whether poll() has something to do, now or at a time.
  bool has_work() LINKSPAN_EXCLUDES(mutex_);

  // peer_scheduler_messages.cpp: two-sided transfers
  /// Submits a two-sided transfer; `offer` is a send's. The transfer may be quiet on return.
  Status submit(const std::shared_ptr<TransferState>& transfer, OfferFrame offer)
      LINKSPAN_EXCLUDES(mutex_);
  /// Calls `act(Rendezvous&)` for a frame of the peer. corrupt: the peer does not read its answers.
  template <class Act>
  Status on_message_frame(Act act) LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    touch();
    Status status = act(rendezvous_);
    if (frames_.unsent() > kMaxUnsent)
      status = Status(Code::corrupt, Scope::peer, "the peer does not read its answers");
    advance(base::Clock::steady().now());
    return status;
  }
  /// Returns the registration and keys of memory that a message offers to the peer, or nulls.
  struct OfferedMemory {
    std::shared_ptr<const memory::Registration> registration;
    std::shared_ptr<const Keys> keys;
  };
  OfferedMemory offered(std::uint64_t serial) LINKSPAN_EXCLUDES(mutex_);
  /// Returns whether a message waits for that region of the peer.
  bool awaits_import(std::uint64_t serial) LINKSPAN_EXCLUDES(mutex_);

  // peer_scheduler_report.cpp: what operators see
  /// Returns the peer's line of dump().
  std::string line(base::Time now) LINKSPAN_EXCLUDES(mutex_);
  /// Describes the Endpoints and their paths, for the log.
  std::string describe_paths() LINKSPAN_EXCLUDES(mutex_);
  /// Lists the ids of the oldest transfers that are not quiet, and counts all.
  std::pair<std::vector<std::uint64_t>, std::size_t> oldest(std::size_t at_most)
      LINKSPAN_EXCLUDES(mutex_);
  /// Returns a line of dump(), or an empty one if the transfer is quiet.
  std::string line_of(std::uint64_t transfer, base::Time now) LINKSPAN_EXCLUDES(mutex_);
  /// Describes what the peer does on that region of ours; empty if nothing.
  std::string uses_of(std::uint64_t serial) LINKSPAN_EXCLUDES(mutex_);
  std::size_t unquiet() LINKSPAN_EXCLUDES(mutex_);
  /// Returns true if the peer has keys of our memory and is not gone, so may still copy there.
  bool has_keys() LINKSPAN_EXCLUDES(mutex_);
  PeerMetrics metrics() LINKSPAN_EXCLUDES(mutex_);
  /// Counts an import of a region of the peer's; null counts a failed one.
  void count_import(const std::shared_ptr<ImportedRegion>& region) LINKSPAN_EXCLUDES(mutex_);
  /// Counts keys sent to the peer. They count as in use until retracted(serial); serial 0 means
  /// memory of a message, which ends with it.
  void count_export(std::uint64_t serial) LINKSPAN_EXCLUDES(mutex_);
  void retracted(std::uint64_t serial) LINKSPAN_EXCLUDES(mutex_);
  /// Lists the peer's regions that are still in use here.
  std::vector<std::shared_ptr<ImportedRegion>> imported() LINKSPAN_EXCLUDES(mutex_);

 private:
  static constexpr std::size_t kMaxUnsent = 65536;  // answers that a peer does not read

  void touch() noexcept {
    if (!active.load()) events_.activate(*this);
  }
  Status check_up() const LINKSPAN_REQUIRES(mutex_);
  Status check_room() const LINKSPAN_REQUIRES(mutex_);
  void lose() LINKSPAN_REQUIRES(mutex_);
  void finish_teardown() LINKSPAN_REQUIRES(mutex_);

  Status start(const std::shared_ptr<TransferState>& transfer) LINKSPAN_REQUIRES(mutex_);
  Status post_or_queue(const std::shared_ptr<TransferState>& transfer) LINKSPAN_REQUIRES(mutex_);
  void admit(const std::shared_ptr<TransferState>& transfer) LINKSPAN_REQUIRES(mutex_);
  void dismiss(const TransferState& transfer) LINKSPAN_REQUIRES(mutex_);
  void pump() LINKSPAN_REQUIRES(mutex_);
  Status post_next(TransferState& transfer) LINKSPAN_REQUIRES(mutex_);
  // In peer_scheduler_failover.cpp.
  std::size_t transport_after(const PostedBatch& batch) const LINKSPAN_REQUIRES(mutex_);
  bool fails_over(const PostedBatch& batch, const Status& why) const LINKSPAN_REQUIRES(mutex_);
  void move_over(const PostedBatch& batch, const Status& why, std::vector<Block> left)
      LINKSPAN_REQUIRES(mutex_);
  void move_over(const PostedBatch& batch, transport::Completion& failed) LINKSPAN_REQUIRES(mutex_);
  static bool must_wait_for_stream(const Status& status, const TransferState& transfer);
  bool resume(const std::shared_ptr<TransferState>& transfer) LINKSPAN_REQUIRES(mutex_);
  bool resume_copy(const std::shared_ptr<TransferState>& transfer) LINKSPAN_REQUIRES(mutex_);
  bool resume_message(TransferState& transfer) LINKSPAN_REQUIRES(mutex_);
  void end_waiting_message(TransferState& transfer, const Status& status) LINKSPAN_REQUIRES(mutex_);
  void cancel_now(TransferState& transfer) LINKSPAN_REQUIRES(mutex_);
  void cancel_all() LINKSPAN_REQUIRES(mutex_);
  void cancel_batches(const TransferState& transfer) LINKSPAN_REQUIRES(mutex_);
  void stop(TransferState& transfer, const Status& why) LINKSPAN_REQUIRES(mutex_);
  void stop_posting(TransferState& transfer) LINKSPAN_REQUIRES(mutex_);
  bool end_if_quiet(TransferState& transfer) LINKSPAN_REQUIRES(mutex_);
  bool finish(TransferState& transfer) LINKSPAN_REQUIRES(mutex_);
  void make_room_to_end() LINKSPAN_REQUIRES(mutex_);
  void finalize(TransferState& transfer) LINKSPAN_REQUIRES(mutex_);
  void expire(base::Time now) LINKSPAN_REQUIRES(mutex_);
  std::size_t advance(base::Time now) LINKSPAN_REQUIRES(mutex_);
  transport::PollHint poll_hint(base::Time now) LINKSPAN_REQUIRES(mutex_);
  Duration time_to_sleep(base::Time begin, base::Time now) LINKSPAN_REQUIRES(mutex_);
  void count_end(const TransferState& transfer) LINKSPAN_REQUIRES(mutex_);

  // RendezvousHost
  Status begin_message(TransferState& transfer, OfferFrame& offer) LINKSPAN_REQUIRES(mutex_);
  Status send_offer(TransferState& transfer, OfferFrame& offer) LINKSPAN_REQUIRES(mutex_);
  Status send_frame(control::FrameOp op, std::uint64_t id,
                    std::span<const std::byte> payload) override LINKSPAN_REQUIRES(mutex_);
  Status copy(TransferState& transfer) override LINKSPAN_REQUIRES(mutex_);
  Result<std::size_t> transport_for(const MessageState& x, Op op, std::uint64_t bytes) const
      LINKSPAN_REQUIRES(mutex_);
  void stop(TransferState& transfer) override LINKSPAN_REQUIRES(mutex_);
  void matched(const TransferState& transfer) override LINKSPAN_REQUIRES(mutex_);
  void end(TransferState& transfer, const Status& status) override LINKSPAN_REQUIRES(mutex_);
  void drop(std::shared_ptr<void> what) override LINKSPAN_REQUIRES(mutex_);
  void progress_messages() LINKSPAN_REQUIRES(mutex_);

  std::string line_of(const TransferState& transfer, base::Time now) LINKSPAN_REQUIRES(mutex_);
  /// Describes the peer or event that the transfer waits for.
  std::string waits_for(const TransferState& transfer) LINKSPAN_REQUIRES(mutex_);

  SchedulerEvents& events_;
  const Transports& transports_;
  const base::Log& log_;
  const std::shared_ptr<control::Session> session_;  // also control's
  std::atomic<unsigned> waiters_{0};                 // users' threads in wait()
  std::atomic<unsigned> looks_{0};  // of users' threads, by wait() or try_progress(), since poll()

  base::Mutex mutex_;
  base::Condition quiet_;                              // a transfer became quiet
  unsigned sleepers_ LINKSPAN_GUARDED_BY(mutex_) = 0;  // waiters that wait for quiet_
  FrameSender frames_ LINKSPAN_GUARDED_BY(mutex_);
  PeerEndpoints endpoints_ LINKSPAN_GUARDED_BY(mutex_);
  struct PeerStatus {
    PeerState state = PeerState::up;
    bool draining = false;  // its connection has ended; data of it may still arrive
    bool closing = false;   // close() was called: nothing new begins
    Status refusal;         // of submissions, by refuse()
    base::Time since = base::Clock::steady().now();
  } status_ LINKSPAN_GUARDED_BY(mutex_);
  // Transfers that are not quiet, by id; also of handles, which wait for `quiet`.
  using Transfers = std::map<
      std::uint64_t, std::shared_ptr<TransferState>, std::less<>,
      base::RecyclingAllocator<std::pair<const std::uint64_t, std::shared_ptr<TransferState>>>>;
  Transfers transfers_ LINKSPAN_GUARDED_BY(mutex_);
  // Those of which not all batches are posted. `sweep_`: some of them were stopped.
  std::deque<std::shared_ptr<TransferState>> queue_ LINKSPAN_GUARDED_BY(mutex_);
  bool sweep_ LINKSPAN_GUARDED_BY(mutex_) = false;
  StreamWaits stream_waits_ LINKSPAN_GUARDED_BY(mutex_);
  BatchTable batches_ LINKSPAN_GUARDED_BY(mutex_);
  base::Time next_expiry_ LINKSPAN_GUARDED_BY(mutex_) = base::Time::max();  // a lower bound
  std::size_t finishing_ LINKSPAN_GUARDED_BY(mutex_) = 0;  // only their notification is left
  std::size_t ended_ LINKSPAN_GUARDED_BY(mutex_) = 0;      // became quiet since the last progress()
  std::vector<Block> scratch_ LINKSPAN_GUARDED_BY(mutex_);  // of the batch that is being posted
  std::vector<std::shared_ptr<void>> garbage_ LINKSPAN_GUARDED_BY(mutex_);

  Rendezvous rendezvous_ LINKSPAN_GUARDED_BY(mutex_){*this};
  // Ended copies of two-sided transfers: id of the whole, status. Handled by progress(), not within
  // pump().
  std::vector<std::pair<std::uint64_t, Status>> copied_ LINKSPAN_GUARDED_BY(mutex_);
  // Messages that are over while the peer still copies on their memory.
  std::vector<std::shared_ptr<TransferState>> awaiting_release_ LINKSPAN_GUARDED_BY(mutex_);

  struct SharedRegions {
    std::vector<std::weak_ptr<ImportedRegion>> imported;  // expired ones are dropped now and then
    std::set<std::uint64_t> exported;                     // serials whose keys were sent
  } regions_ LINKSPAN_GUARDED_BY(mutex_);
  PeerCounters counters_ LINKSPAN_GUARDED_BY(mutex_);
  std::uint64_t started_before_ LINKSPAN_GUARDED_BY(mutex_) = 0;  // counters_.started at poll()
};

}  // namespace linkspan::engine
