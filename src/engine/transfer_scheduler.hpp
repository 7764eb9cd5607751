// engine/transfer_scheduler.hpp - the bookkeeping of an Engine: its peers, their endpoints, their
// transfers.
//
// On the path of a byte: submit() queues, pump() posts what an Endpoint takes, progress() collects
// completions and ends transfers. Whoever holds the lock does the work: the user's thread that
// submits or waits, else the ProgressThread.
// Threads: all under `mutex`, where nothing blocks; extract_garbage()'s result is destroyed off it.
// Invariants: a transfer is quiet exactly once; a batch in flight keeps its regions alive; a peer
// is forgotten when it is gone and nothing of it is in flight.
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
#include "engine/keys.hpp"
#include "engine/metrics.hpp"
#include "engine/rendezvous.hpp"
#include "engine/transfer.hpp"
#include "linkspan/peer.hpp"
#include "transport/transport.hpp"

namespace linkspan::engine {

/// How a transport talks to its peer: through the Session of that peer.
class SessionChannel final : public transport::Channel {
 public:
  using Inbox = std::function<void(const control::Session&, std::vector<std::byte>,
                                   std::uint64_t after)>;  // as notified()
  /// `inbox`: for notifications; any thread.
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
  void give_up(const Status& why) override { control_.drop(session_, why); }
  void notified(std::vector<std::byte> notification, std::uint64_t after) override {
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
  bool draining = false;  // its connection has ended; something of it may still land
  bool closing = false;   // by Peer::close(): nothing new begins
  std::deque<std::shared_ptr<TransferState>> queue;  // also of handles; some batch is not posted
  bool sweep = false;  // some of the queue will not be posted any more
  std::size_t unquiet = 0;
  struct Unsent {
    control::FrameOp op;
    std::uint64_t id;
    std::vector<std::byte> payload;
  };
  std::deque<Unsent> unsent;  // of two-sided exchanges: the socket had no room
  base::Time since{};
  std::vector<std::weak_ptr<ImportedRegion>>
      imported_regions;                      // those that nobody holds go now and then
  std::set<std::uint64_t> exported_serials;  // serials whose keys were sent
  PeerCounters counters;
  std::uint64_t notified = 0;  // notifications that went by its session

  /// Sends a notification by its session. Errors as Session::notify().
  Status notify(std::span<const std::byte> message) {
    Status status = session->notify(message);
    notified += status.ok() ? 1 : 0;
    return status;
  }
};

/// Returns the status that ends what is begun with a peer that is not connected any more.
Status not_connected(std::uint64_t peer);

class TransferScheduler final : private transport::CompletionSink, private RendezvousHost {
 public:
  static constexpr std::size_t kQueue = 16384;  ///< Transfers of a peer that are not quiet.

  TransferScheduler(const base::Log& log, control::ControlPlane*& control,
                    const Transports& transports)
      : log_(log), control_(control), transports_(transports) {}

  base::Mutex mutex;

  void add_peer(std::uint64_t id, std::unique_ptr<PeerRecord> peer) LINKSPAN_REQUIRES(mutex);
  PeerRecord* find_peer(std::uint64_t id) LINKSPAN_REQUIRES(mutex);
  void on_peer_lost(std::uint64_t peer) LINKSPAN_REQUIRES(mutex);
  void on_peer_gone(std::uint64_t peer) LINKSPAN_REQUIRES(mutex);

  /// Queues and posts what goes at once. An error: nothing was started.
  Status submit(const std::shared_ptr<TransferState>& transfer) LINKSPAN_REQUIRES(mutex);
  /// A two-sided one; `offer` is a send's. It may be over when this returns.
  Status submit(const std::shared_ptr<TransferState>& transfer, OfferFrame offer)
      LINKSPAN_REQUIRES(mutex);
  Rendezvous& rendezvous() LINKSPAN_REQUIRES(mutex) { return rendezvous_; }
  void cancel(TransferState& transfer) LINKSPAN_REQUIRES(mutex);
  /// Whatever reads or writes that memory of ours here.
  void cancel_all_on(const memory::Registration& registration) LINKSPAN_REQUIRES(mutex);
  /// How many transfers became quiet.
  std::size_t progress(base::Time now) LINKSPAN_REQUIRES(mutex);
  transport::PollHint poll_hint() LINKSPAN_REQUIRES(mutex);
  /// What holds close() up, one after the other: transfers that are not quiet, copies for peers,
  /// peers that may still copy on our memory, and what is said to remote ones and not sent.
  enum class CloseBlocker : std::uint8_t { transfers, copies, memory, messages };
  /// `peer`: the one that is closed. None: all are.
  bool is_close_blocked(CloseBlocker blocker, std::optional<std::uint64_t> peer = std::nullopt)
      LINKSPAN_REQUIRES(mutex);
  /// By which remote peers that are connected.
  std::vector<std::shared_ptr<control::Session>> remote_close_blockers(
      CloseBlocker blocker, std::optional<std::uint64_t> peer = std::nullopt)
      LINKSPAN_REQUIRES(mutex);
  /// No more submissions, none of peers either; all of ours that is in flight is canceled.
  void close() LINKSPAN_REQUIRES(mutex);
  /// Does the same with one peer. False: it is gone.
  bool close(std::uint64_t peer) LINKSPAN_REQUIRES(mutex);
  /// Answers whether something may begin with that peer; disconnected: the text says why not.
  Status may_begin(std::uint64_t peer) LINKSPAN_REQUIRES(mutex);
  /// Lists the regions of that peer's that somebody here still names.
  std::vector<std::shared_ptr<ImportedRegion>> imported_from(std::uint64_t peer)
      LINKSPAN_REQUIRES(mutex);
  /// All that lie in the rings of peers, each peer's in order.
  void drain_notifications(std::vector<Notification>& into) LINKSPAN_REQUIRES(mutex);
  /// As Session::request_doorbell(), of every peer.
  bool request_wake_ups() LINKSPAN_REQUIRES(mutex);
  // worker_report.cpp
  /// Whom it waits for: peers with transfers that are not quiet.
  std::string waits_for() LINKSPAN_REQUIRES(mutex);
  /// Who was sent keys of our memory and may still copy there: peers that are not gone.
  std::string peers_with_keys() LINKSPAN_REQUIRES(mutex);
  std::string users_of(std::uint64_t serial) LINKSPAN_REQUIRES(mutex);
  /// Of each kind of thing the first ones, and how many more.
  std::string dump() LINKSPAN_REQUIRES(mutex);
  /// All but the regions.
  EngineMetrics metrics() LINKSPAN_REQUIRES(mutex);
  /// A region of the peer's was imported, or could not be (null).
  void count_import(std::uint64_t peer, const std::shared_ptr<ImportedRegion>& region)
      LINKSPAN_REQUIRES(mutex);
  /// The peer was sent the keys of a region of ours, which `retracted()` takes back; serial 0: of
  /// memory of a message.
  void count_export(std::uint64_t peer, std::uint64_t serial) LINKSPAN_REQUIRES(mutex);
  void retracted(std::uint64_t serial) LINKSPAN_REQUIRES(mutex);
  /// What ended: the caller drops it off the lock.
  std::vector<std::shared_ptr<void>> extract_garbage() LINKSPAN_REQUIRES(mutex);
  /// Ends every endpoint; after close() and when nothing is in flight, or the process is ending.
  void destroy_peers() LINKSPAN_REQUIRES(mutex);

 private:
  /// Endpoints deliver while progress() holds the lock, which clang cannot see through them.
  void complete(transport::Completion&& completion) override
      LINKSPAN_TSA(no_thread_safety_analysis) {
    completions_.push_back(std::move(completion));
  }
  static bool is_idle(const PeerRecord& peer);  ///< Its endpoints.
  bool blocks_close(const PeerRecord& peer, CloseBlocker blocker) const LINKSPAN_REQUIRES(mutex);
  static void serve_no_more(const PeerRecord& peer);
  /// No copy for a peer is under way.
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
  /// Whom or what it waits for.
  std::string waits_for(const TransferState& transfer, bool waits_on_stream)
      LINKSPAN_REQUIRES(mutex);
  /// The user's stream has come by, or what it was asked; so it need not be held any more.
  static Result<bool> has_passed(const TransferState& transfer);

  // worker_two_sided.cpp
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
  control::ControlPlane*& control_;
  const Transports& transports_;
  Rendezvous rendezvous_ LINKSPAN_GUARDED_BY(mutex){*this};
  bool closed_ LINKSPAN_GUARDED_BY(mutex) = false;
  std::map<std::uint64_t, std::unique_ptr<PeerRecord>> peers_ LINKSPAN_GUARDED_BY(mutex);
  // All that are not quiet, by id; also of handles, which wait for `quiet`.
  std::map<std::uint64_t, std::shared_ptr<TransferState>> transfers_ LINKSPAN_GUARDED_BY(mutex);
  base::HandleTable<TransferState*> batches_ LINKSPAN_GUARDED_BY(mutex);  // in flight, by cookie
  // Also in transfers_: their user's stream has not come by.
  std::vector<std::shared_ptr<TransferState>> waiting_on_stream_ LINKSPAN_GUARDED_BY(mutex);
  base::Time stream_waits_since_ LINKSPAN_GUARDED_BY(mutex){}, next_stream_poll_
      LINKSPAN_GUARDED_BY(mutex){};
  base::Time next_expiry_ LINKSPAN_GUARDED_BY(mutex) = base::Time::max();  // or sooner
  std::vector<Block> scratch_ LINKSPAN_GUARDED_BY(mutex);  // of the batch that is being posted
  std::vector<std::shared_ptr<void>> garbage_ LINKSPAN_GUARDED_BY(mutex);
  std::vector<transport::Completion> completions_ LINKSPAN_GUARDED_BY(mutex);
  std::vector<transport::Completion> handled_completions_
      LINKSPAN_GUARDED_BY(mutex);  // of this progress()
  std::size_t finishing_ LINKSPAN_GUARDED_BY(mutex) = 0;
  std::size_t ended_ LINKSPAN_GUARDED_BY(mutex) = 0;  // quiet since the last progress()
  // Copies of two-sided transfers that have ended: whose, and how. For progress(), not within
  // pump().
  std::vector<std::pair<std::uint64_t, Status>> copied_ LINKSPAN_GUARDED_BY(mutex);
  // Over, but the peer copies on their memory all the same.
  std::vector<std::shared_ptr<TransferState>> awaiting_release_ LINKSPAN_GUARDED_BY(mutex);
  std::size_t unsent_ LINKSPAN_GUARDED_BY(mutex) = 0;  // of all peers
  std::uint64_t last_id_ LINKSPAN_GUARDED_BY(mutex) = 0;
  PeerCounters forgotten_counters_ LINKSPAN_GUARDED_BY(mutex);  // of peers that are forgotten
};

}  // namespace linkspan::engine
