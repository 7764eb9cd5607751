// engine/transfer_scheduler.hpp - the bookkeeping of an Engine: peers, endpoints, transfers.
//
// On the path of a byte: submit() queues, pump() posts batches to an Endpoint, progress() collects
// completions and ends transfers. The thread that has the lock does the work: a user's thread that
// submits or waits, else the ProgressThread.
// Threads: all under `mutex`, where nothing blocks; the result of extract_garbage() is destroyed
// without it.
// Invariants: a transfer becomes quiet exactly once; a batch in flight keeps its regions alive; a
// peer is forgotten when it is gone and nothing of it is in flight.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/handle_table.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "control/control_plane.hpp"
#include "engine/diagnostics/metrics.hpp"
#include "engine/messages/rendezvous.hpp"
#include "engine/registration/keys.hpp"
#include "engine/transfers/transfer.hpp"
#include "linkspan/peer.hpp"
#include "transport/transport.hpp"

namespace linkspan::engine {

/// Sends a transport's messages through the Session of its peer.
class SessionChannel final : public transport::Channel {
 public:
  using Inbox = std::function<void(const control::Session&, std::vector<std::byte>,
                                   std::uint64_t after)>;  // as notified()
  /// `inbox` receives notifications, on any thread.
  SessionChannel(std::shared_ptr<control::Session> session, std::string transport,
                 control::ControlPlane& control, Inbox inbox)
      : session_(std::move(session)),
        transport_(std::move(transport)),
        control_(control),
        inbox_(std::move(inbox)) {}
  Status send(std::uint16_t op, std::span<const std::byte> bytes, std::span<base::Fd> fds) override;
  transport::SessionKey session_key() const noexcept override { return session_->key(); }
  transport::PeerProcess process() const noexcept override {
    return {session_->pid(), session_->pidfd(), session_->same_user(), session_->incarnation()};
  }
  std::string_view peer_name() const noexcept override { return session_->hello().engine; }
  bool connects() const noexcept override { return session_->is_remote() && session_->initiated(); }
  Status open_data_connection() override {
    return control_.open_data_connection(session_, transport_);
  }
  void fail_peer(const Status& why) override { control_.drop(session_, why); }
  void deliver_notification(std::vector<std::byte> notification, std::uint64_t after) override {
    inbox_(*session_, std::move(notification), after);
  }

 private:
  std::shared_ptr<control::Session> session_;  // also control's
  std::string transport_;
  control::ControlPlane& control_;
  const Inbox inbox_;
};

struct PeerRecord {
  std::shared_ptr<control::Session> session;                    // also control's
  std::vector<std::unique_ptr<SessionChannel>> channels;        // by the transports' order,
  std::vector<std::unique_ptr<transport::Endpoint>> endpoints;  // null: the peer lacks it
  PeerState state = PeerState::up;
  bool ready = false;
  bool draining = false;  // its connection has ended; data of it may still arrive
  bool closing = false;   // Peer::close() was called: nothing new begins
  std::deque<std::shared_ptr<TransferState>> queue;  // also of handles; not all batches are posted
  bool sweep = false;                                // the queue has transfers that were stopped
  std::size_t unquiet = 0;
  struct Unsent {
    control::FrameOp op;
    std::uint64_t id;
    std::vector<std::byte> payload;
  };
  std::deque<Unsent> unsent;  // frames of messages; the socket was full
  base::Time since{};
  std::vector<std::weak_ptr<ImportedRegion>>
      imported_regions;                      // expired ones are dropped now and then
  std::set<std::uint64_t> exported_serials;  // serials whose keys were sent
  PeerCounters counters;
  std::uint64_t notified = 0;  // notifications sent over its session

  /// Sends a notification over the session. Errors as Session::notify().
  Status notify(std::span<const std::byte> message) {
    Status status = session->notify(message);
    notified += status.ok() ? 1 : 0;
    return status;
  }
};

/// Returns the status of operations with a peer that is not connected any more.
Status not_connected(std::uint64_t peer);

class TransferScheduler final : private transport::CompletionSink, private RendezvousHost {
 public:
  static constexpr std::size_t kQueue = 16384;  ///< Transfers of a peer that are not quiet.

  TransferScheduler(const base::Log& log, const Transports& transports)
      : log_(log), transports_(transports) {}

  base::Mutex mutex;

  void add_peer(std::uint64_t id, std::unique_ptr<PeerRecord> peer) LINKSPAN_REQUIRES(mutex);
  PeerRecord* find_peer(std::uint64_t id) LINKSPAN_REQUIRES(mutex);
  void on_peer_lost(std::uint64_t peer) LINKSPAN_REQUIRES(mutex);
  void on_peer_gone(std::uint64_t peer) LINKSPAN_REQUIRES(mutex);

  /// Queues the transfer and posts the batches that have room. On error nothing was started.
  Status submit(const std::shared_ptr<TransferState>& transfer) LINKSPAN_REQUIRES(mutex);
  /// Submits a two-sided transfer; `offer` is a send's. The transfer may be quiet on return.
  Status submit(const std::shared_ptr<TransferState>& transfer, OfferFrame offer)
      LINKSPAN_REQUIRES(mutex);
  Rendezvous& rendezvous() LINKSPAN_REQUIRES(mutex) { return rendezvous_; }
  void cancel(TransferState& transfer) LINKSPAN_REQUIRES(mutex);
  /// Cancels all transfers of this side that use that registration.
  void cancel_all_on(const memory::Registration& registration) LINKSPAN_REQUIRES(mutex);
  /// Makes progress and returns how many transfers became quiet.
  std::size_t progress(base::Time now) LINKSPAN_REQUIRES(mutex);
  transport::PollHint poll_hint() LINKSPAN_REQUIRES(mutex);
  /// Names what close() waits for, in this order: transfers that are not quiet, copies for peers,
  /// peers that may still copy on our memory, and messages to remote peers that are not sent.
  enum class CloseBlocker : std::uint8_t { transfers, copies, memory, messages };
  /// Returns whether close() of `peer`, or of the Engine if it is nullopt, still has to wait.
  bool is_close_blocked(CloseBlocker blocker, std::optional<std::uint64_t> peer = std::nullopt)
      LINKSPAN_REQUIRES(mutex);
  /// Lists the connected remote peers that close() waits for.
  std::vector<std::shared_ptr<control::Session>> remote_close_blockers(
      CloseBlocker blocker, std::optional<std::uint64_t> peer = std::nullopt)
      LINKSPAN_REQUIRES(mutex);
  /// Refuses further submissions of this side and of peers, and cancels all transfers.
  void close() LINKSPAN_REQUIRES(mutex);
  /// Does the same with one peer. Returns false if it is gone.
  bool close(std::uint64_t peer) LINKSPAN_REQUIRES(mutex);
  /// Returns OK if operations with that peer may begin, else disconnected with the reason.
  Status may_begin(std::uint64_t peer) LINKSPAN_REQUIRES(mutex);
  /// Lists the peer's regions that are still in use here.
  std::vector<std::shared_ptr<ImportedRegion>> imported_from(std::uint64_t peer)
      LINKSPAN_REQUIRES(mutex);
  /// Appends all notifications in the peers' rings, each peer's in order.
  void drain_notifications(std::vector<Notification>& into) LINKSPAN_REQUIRES(mutex);
  /// Arms the wake-up of every peer's ring. Returns false if a notification waits in one.
  bool request_wake_ups() LINKSPAN_REQUIRES(mutex);
  // transfer_scheduler_report.cpp
  /// Names the peers with transfers that are not quiet.
  std::string waits_for() LINKSPAN_REQUIRES(mutex);
  /// Names the peers that have keys of our memory and are not gone, so may still copy there.
  std::string peers_with_keys() LINKSPAN_REQUIRES(mutex);
  /// Describes what peers do on that region of ours; empty if nothing.
  std::string users_of(std::uint64_t serial) LINKSPAN_REQUIRES(mutex);
  /// Describes the first peers and transfers, and how many more there are.
  std::string dump() LINKSPAN_REQUIRES(mutex);
  /// Returns all metrics except the number of regions.
  EngineMetrics metrics() LINKSPAN_REQUIRES(mutex);
  /// Counts an import of a region of the peer's; null counts a failed one.
  void count_import(std::uint64_t peer, const std::shared_ptr<ImportedRegion>& region)
      LINKSPAN_REQUIRES(mutex);
  /// Counts keys sent to the peer. They count as in use until retracted(serial); serial 0 means
  /// memory of a message, which ends with it.
  void count_export(std::uint64_t peer, std::uint64_t serial) LINKSPAN_REQUIRES(mutex);
  void retracted(std::uint64_t serial) LINKSPAN_REQUIRES(mutex);
  /// Returns objects that have ended. The caller destroys them without the lock.
  std::vector<std::shared_ptr<void>> extract_garbage() LINKSPAN_REQUIRES(mutex);
  /// Closes every endpoint. Requires close() and nothing in flight, or the end of the process.
  void destroy_peers() LINKSPAN_REQUIRES(mutex);

 private:
  /// Called by Endpoints from progress(), which holds the lock; clang cannot see that.
  void complete(transport::Completion&& completion) override
      LINKSPAN_TSA(no_thread_safety_analysis) {
    completions_.push_back(std::move(completion));
  }
  static bool is_idle(const PeerRecord& peer);  ///< Returns whether all its endpoints are idle.
  bool blocks_close(const PeerRecord& peer, CloseBlocker blocker) const LINKSPAN_REQUIRES(mutex);
  static void stop_serving(const PeerRecord& peer);
  /// Returns true if no copy for a peer is in progress.
  bool serves_no_peer() LINKSPAN_REQUIRES(mutex);
  void pump(PeerRecord& peer) LINKSPAN_REQUIRES(mutex);
  void finish_peer_teardown(std::uint64_t id, PeerRecord& peer) LINKSPAN_REQUIRES(mutex);
  static bool must_wait_for_stream(const Status& status, const TransferState& transfer);
  void wait_for_stream(const std::shared_ptr<TransferState>& transfer) LINKSPAN_REQUIRES(mutex);
  void poll_user_streams(base::Time now) LINKSPAN_REQUIRES(mutex);
  bool resume_copy(const std::shared_ptr<TransferState>& transfer) LINKSPAN_REQUIRES(mutex);
  void cancel_batches(PeerRecord& peer, const TransferState& transfer) LINKSPAN_REQUIRES(mutex);
  Status post_next(PeerRecord& peer, TransferState& transfer) LINKSPAN_REQUIRES(mutex);
  void stop(TransferState& transfer, const Status& why) LINKSPAN_REQUIRES(mutex);
  void stop_posting(TransferState& transfer) LINKSPAN_REQUIRES(mutex);
  bool end_if_quiet(const std::shared_ptr<TransferState>& transfer) LINKSPAN_REQUIRES(mutex);
  bool finish(TransferState& transfer) LINKSPAN_REQUIRES(mutex);
  void expire(base::Time now) LINKSPAN_REQUIRES(mutex);
  void finalize(const std::shared_ptr<TransferState>& transfer) LINKSPAN_REQUIRES(mutex);
  Status may_submit(std::uint64_t peer) LINKSPAN_REQUIRES(mutex);

  void admit(PeerRecord& peer, const std::shared_ptr<TransferState>& transfer)
      LINKSPAN_REQUIRES(mutex);
  void count_end(const TransferState& transfer) LINKSPAN_REQUIRES(mutex);
  std::string line_of(const PeerRecord& peer, base::Time now) LINKSPAN_REQUIRES(mutex);
  std::string line_of(const TransferState& transfer, bool waits_on_stream, base::Time now)
      LINKSPAN_REQUIRES(mutex);
  /// Describes the peer or event that the transfer waits for.
  std::string waits_for(const TransferState& transfer, bool waits_on_stream)
      LINKSPAN_REQUIRES(mutex);
  /// Returns whether the user's stream has reached the transfer's mark.
  static Result<bool> has_passed(const TransferState& transfer);

  // transfer_scheduler_two_sided.cpp
  Status send_offer(PeerRecord& peer, TransferState& transfer, OfferFrame& offer)
      LINKSPAN_REQUIRES(mutex);
  bool resume_message(TransferState& transfer) LINKSPAN_REQUIRES(mutex);
  void end_waiting_message(TransferState& transfer, const Status& status) LINKSPAN_REQUIRES(mutex);
  Status send_frame(std::uint64_t peer, control::FrameOp op, std::uint64_t id,
                    std::span<const std::byte> payload) override LINKSPAN_REQUIRES(mutex);
  Status copy(TransferState& transfer) override LINKSPAN_REQUIRES(mutex);
  Result<std::size_t> transport_for(const PeerRecord& peer, const MessageState& x, Op op,
                                    std::uint64_t bytes) const LINKSPAN_REQUIRES(mutex);
  void stop(TransferState& transfer) override LINKSPAN_REQUIRES(mutex);
  void matched(const TransferState& transfer) override LINKSPAN_REQUIRES(mutex);
  void end(TransferState& transfer, const Status& status) override LINKSPAN_REQUIRES(mutex);
  void drop(std::shared_ptr<void> what) override LINKSPAN_REQUIRES(mutex);
  void progress_two_sided() LINKSPAN_REQUIRES(mutex);

  const base::Log& log_;
  const Transports& transports_;
  Rendezvous rendezvous_ LINKSPAN_GUARDED_BY(mutex){*this};
  bool closed_ LINKSPAN_GUARDED_BY(mutex) = false;
  std::map<std::uint64_t, std::unique_ptr<PeerRecord>> peers_ LINKSPAN_GUARDED_BY(mutex);
  // Transfers that are not quiet, by id; also of handles, which wait for `quiet`.
  std::map<std::uint64_t, std::shared_ptr<TransferState>> transfers_ LINKSPAN_GUARDED_BY(mutex);
  base::HandleTable<TransferState*> batches_ LINKSPAN_GUARDED_BY(mutex);  // in flight, by cookie
  // Subset of transfers_: the user's stream has not reached their mark.
  std::vector<std::shared_ptr<TransferState>> waiting_on_stream_ LINKSPAN_GUARDED_BY(mutex);
  base::Time stream_waits_since_ LINKSPAN_GUARDED_BY(mutex){}, next_stream_poll_
      LINKSPAN_GUARDED_BY(mutex){};
  base::Time next_expiry_ LINKSPAN_GUARDED_BY(mutex) = base::Time::max();  // a lower bound
  std::vector<Block> scratch_ LINKSPAN_GUARDED_BY(mutex);  // of the batch that is being posted
  std::vector<std::shared_ptr<void>> garbage_ LINKSPAN_GUARDED_BY(mutex);
  std::vector<transport::Completion> completions_ LINKSPAN_GUARDED_BY(mutex);
  std::vector<transport::Completion> handled_completions_
      LINKSPAN_GUARDED_BY(mutex);  // swapped with completions_
  std::size_t finishing_ LINKSPAN_GUARDED_BY(mutex) = 0;
  std::size_t ended_ LINKSPAN_GUARDED_BY(mutex) = 0;  // became quiet since the last progress()
  // Ended copies of two-sided transfers: id of the whole, status. Handled by progress(), not within
  // pump().
  std::vector<std::pair<std::uint64_t, Status>> copied_ LINKSPAN_GUARDED_BY(mutex);
  // Messages that are over while the peer still copies on their memory.
  std::vector<std::shared_ptr<TransferState>> awaiting_release_ LINKSPAN_GUARDED_BY(mutex);
  std::size_t unsent_ LINKSPAN_GUARDED_BY(mutex) = 0;  // of all peers
  std::uint64_t last_id_ LINKSPAN_GUARDED_BY(mutex) = 0;
  PeerCounters forgotten_counters_ LINKSPAN_GUARDED_BY(mutex);  // of forgotten peers
};

}  // namespace linkspan::engine
