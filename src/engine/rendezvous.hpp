// engine/rendezvous.hpp - how a send and a receive find each other and who of the two copies.
//
// The sender offers. The receiver, once both are there, decides: its memory is a GPU's, then it
// lends it and the sender writes (accept, push); else it reads the sender's itself (pull). Whoever
// copies submits an ordinary one-sided transfer and then says `finished`. Who wants out asks the
// other (withdraw) whenever that one may touch its memory, and ends with its `finished`; what was
// not touched then is matched again, in its old place.
//
//   sender                  receiver
//   offer      ------->     queued by tag, or matched with the oldest receive of the tag
//              <-------     accept                    push only
//   finished   <------>     finished                  from the side that copied
//   withdraw   <------>     withdraw
//
// On the path of a byte between the user's call and TransferScheduler::submit.
// Threads: under the scheduler's lock; what forget() and sweep() return is destroyed off it.
// Invariants: an exchange ends once, and only when the peer cannot touch its memory; at most
// kOffers unmatched offers of a peer are kept.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "control/handshake.hpp"
#include "engine/transfer.hpp"

namespace linkspan::engine {

/// What a Rendezvous needs of its Engine. All under the scheduler's lock; copied() and imported()
/// come later, never from inside.
class RendezvousHost {
 public:
  /// In order; what has no room waits. disconnected: nobody is there to be told.
  virtual Status send_frame(std::uint64_t peer, control::FrameOp op, std::uint64_t id,
                            std::span<const std::byte> payload) = 0;
  /// Starts the copy of a matched exchange whose `peer.region` is there. OK: copied() follows.
  virtual Status copy(TransferState& transfer) = 0;
  virtual void stop(TransferState& transfer) = 0;  ///< The copy ends early; copied() still follows.
  virtual void matched(const TransferState& transfer) = 0;  ///< Both sides are known: for the log.
  /// The transfer is over and its memory the user's again.
  virtual void end(TransferState& transfer, const Status& status) = 0;
  /// To be destroyed off the lock.
  virtual void drop(std::shared_ptr<void> what) = 0;

 protected:
  ~RendezvousHost() = default;
};

class Rendezvous {
 public:
  static constexpr std::size_t kOffers = 16384;
  /// Imports of the peer's memory by serial; beyond this it lies about its regions.
  static constexpr std::size_t kImports = 65536;

  /// In the frame id of an import: the rest is a serial that was offered to us.
  static constexpr std::uint64_t kBySerial = std::uint64_t{1} << 63;

  explicit Rendezvous(RendezvousHost& host) : host_(host) {}

  /// The offer of a send is out already, under the transfer's id. A receive may end at once.
  void post(TransferState& transfer);
  /// Its owner wants it ended: it was canceled or its deadline passed.
  void stop(TransferState& transfer);
  void copied(TransferState& transfer, const Status& status);

  // What the peer says; an error drops it.
  Status on_offer(std::uint64_t peer, std::uint64_t id, const control::MessageOffer& offer,
                  Result<std::shared_ptr<ImportedRegion>> region);
  /// `region`: by the key that came with it. Null: it is asked for.
  Status on_accept(
      std::uint64_t peer, std::uint64_t id, const control::MessageAccept& accept,
      const Result<std::shared_ptr<ImportedRegion>>& region = std::shared_ptr<ImportedRegion>());
  Status on_finished(std::uint64_t peer, std::uint64_t id,
                     const control::MessageFinished& finished);
  void on_withdraw(std::uint64_t peer, std::uint64_t id, bool by_sender);
  void on_imported(std::uint64_t peer, std::uint64_t serial,
                   const Result<std::shared_ptr<ImportedRegion>>& region);

  /// Whether we asked the peer for that region.
  bool awaits(std::uint64_t peer, std::uint64_t serial) const;
  /// The memory of an exchange with that peer, which may then import it; null: there is none.
  const TemporaryRegistration* offered(std::uint64_t peer, std::uint64_t serial) const;
  /// Imports of regions that their owner has retracted.
  std::vector<std::shared_ptr<void>> sweep(std::uint64_t peer);

  void on_peer_lost(std::uint64_t peer);
  void on_peer_gone(std::uint64_t peer);
  std::shared_ptr<void> forget(std::uint64_t peer);
  std::string describe(const TransferState& transfer) const;  ///< For dump().

 private:
  struct Offer {
    std::uint64_t id = 0, bytes = 0, sequence = 0;
    PeerMemory memory;
  };
  using Key = std::pair<control::MatchSpace, std::uint64_t>;
  /// Each in the order of turns.
  struct MatchQueue {
    std::deque<Offer> offers;  // never both: what can match has matched
    std::deque<TransferState*> receives;

    void reinsert(Offer offer);
    void reinsert(TransferState& receive);
  };
  /// All that goes on with one peer.
  struct PeerMatchState {
    std::map<Key, MatchQueue> queues;
    std::map<std::uint64_t, Key> offers;            // unmatched, by the peer's number
    std::map<std::uint64_t, TransferState*> sends;  // until they are over, by our number
    std::map<std::uint64_t, TransferState*>
        matched_receives;  // our matched receives, by the peer's number
    std::map<std::uint64_t, std::shared_ptr<ImportedRegion>> imports;  // null: asked for
    std::set<std::uint64_t> retried_imports;                           // of these
    bool lost = false;
  };

  static Key key_of(const MessageState& message) { return {message.space, message.tag}; }
  void match_all(PeerMatchState& peer_state, const Key& key);
  void match(PeerMatchState& peer_state, TransferState& receive, Offer offer);
  void begin(PeerMatchState& peer_state, TransferState& transfer);
  void dequeue(PeerMatchState& peer_state, TransferState& receive);
  void rollback_match(PeerMatchState& peer_state, TransferState& receive, bool offer_stays);
  void conclude(TransferState& transfer, const Status& status);
  void end(TransferState& transfer, const Status& status);
  void end_unmatched(TransferState& receive);
  Status withdraw(TransferState& transfer);
  Status finish(std::uint64_t peer, std::uint64_t id, const control::MessageFinished& finished);

  RendezvousHost& host_;
  std::map<std::uint64_t, PeerMatchState> peer_states_;
  std::uint64_t last_sequence_ = 0;
};

}  // namespace linkspan::engine
