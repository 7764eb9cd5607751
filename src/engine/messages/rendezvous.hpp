// engine/messages/rendezvous.hpp - matches sends with receives and decides which side copies.
//
// The sender offers. When the receiver has both, it decides: if its memory is a GPU's it exports
// that, and the sender writes (accept, push); else it reads the sender's memory (pull). The copying
// side submits a one-sided transfer and then sends `finished`. A side that wants to end a message
// while the other may touch its memory sends `withdraw`, and ends when the other has answered
// `finished`. A message that was not touched then is matched again, at its old place.
//
//   sender                  receiver
//   offer      ------->     queued by tag, or matched with the oldest receive of the tag
//              <-------     accept                    push only
//   finished   <------>     finished                  from the side that copied
//   withdraw   <------>     withdraw
//
// On the path of a byte: between the user's call and PeerScheduler::submit.
// Threads: under the peer's mutex; results of sweep() are destroyed without it.
// Invariants: a message ends once, and only when the peer cannot touch its memory; at most kOffers
// unmatched offers of a peer are kept.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "control/handshake.hpp"
#include "engine/transfers/transfer.hpp"

namespace linkspan::engine {

/// Declares what a Rendezvous calls, under the peer's mutex. copied() and on_imported() are
/// called later, never from within these functions.
class RendezvousHost {
 public:
  /// Sends a frame, in order; queues it if the socket is full. disconnected: the peer is lost.
  virtual Status send_frame(control::FrameOp op, std::uint64_t id,
                            std::span<const std::byte> payload) = 0;
  /// Starts the copy of a matched message whose `peer.region` is set. If OK, copied() follows.
  virtual Status copy(TransferState& transfer) = 0;
  virtual void stop(TransferState& transfer) = 0;  ///< Cancels the copy; copied() still follows.
  virtual void matched(const TransferState& transfer) = 0;  ///< Reports a match, for the log.
  /// Ends the transfer; its memory is the user's again. Throws only if nothing has changed.
  virtual void end(TransferState& transfer, const Status& status) = 0;
  /// Keeps `what` until it can be destroyed without the lock.
  virtual void drop(std::shared_ptr<void> what) = 0;

 protected:
  ~RendezvousHost() = default;
};

class Rendezvous {
 public:
  static constexpr std::size_t kOffers = 16384;
  /// Limits imports of the peer's memory by serial; a peer beyond it lies about its regions.
  static constexpr std::size_t kImports = 65536;

  /// Bit in the frame id of an import; the other bits are a serial that the peer offered.
  static constexpr std::uint64_t kBySerial = std::uint64_t{1} << 63;

  explicit Rendezvous(RendezvousHost& host) : host_(host) {}

  /// Adds a message. A send's offer is sent next, under the transfer's id. A receive may end before
  /// this returns. Throws only if nothing has changed; what finds no memory later ends at its
  /// deadline.
  void post(TransferState& transfer);
  /// Undoes post() of a send whose offer was not sent.
  void retract(const TransferState& send) { sends_.erase(send.id); }
  /// Ends a message that was canceled or whose deadline passed.
  void stop(TransferState& transfer);
  void copied(TransferState& transfer, const Status& status);

  // Frames of the peer; an error drops the peer.
  Status on_offer(std::uint64_t id, const control::MessageOffer& offer,
                  Result<std::shared_ptr<ImportedRegion>> region);
  /// `region` was imported by the key that came with the frame. If null, it is requested.
  Status on_accept(
      std::uint64_t id, const control::MessageAccept& accept,
      const Result<std::shared_ptr<ImportedRegion>>& region = std::shared_ptr<ImportedRegion>());
  Status on_finished(std::uint64_t id, const control::MessageFinished& finished);
  void on_withdraw(std::uint64_t id, bool by_sender);
  void on_imported(std::uint64_t serial, const Result<std::shared_ptr<ImportedRegion>>& region);

  /// Returns whether the region was requested from the peer.
  bool awaits(std::uint64_t serial) const;
  /// Returns the memory with that serial of a message with that peer, which may import it, or null.
  const TemporaryRegistration* offered(std::uint64_t serial) const;
  /// Removes and returns imports of regions that the peer has retracted.
  std::vector<std::shared_ptr<void>> sweep();

  void on_peer_lost();
  void on_peer_gone();
  std::string describe(const TransferState& transfer) const;  ///< Returns a text for dump().

 private:
  using Key = std::pair<control::MatchSpace, std::uint64_t>;
  /// Unmatched offers and receives of one key, each in the order of `sequence`.
  struct MatchQueue {
    std::deque<Offer> offers;  // at most one of both is not empty
    std::deque<TransferState*> receives;

    void reinsert(Offer offer);
    void reinsert(TransferState& receive);
  };

  static Key key_of(const MessageState& message) { return {message.space, message.tag}; }
  void match_all(const Key& key);
  void match(TransferState& receive, Offer offer);
  void begin(TransferState& transfer);
  void dequeue(TransferState& receive);
  void rollback_match(TransferState& receive, bool offer_stays);
  void conclude(TransferState& transfer, const Status& status);
  void end(TransferState& transfer, const Status& status);
  void end_unmatched(TransferState& receive);
  Status withdraw(TransferState& transfer);
  Status finish(std::uint64_t id, const control::MessageFinished& finished);

  RendezvousHost& host_;
  std::map<Key, MatchQueue> queues_;
  std::map<std::uint64_t, Key> offers_;                               // unmatched, by wire id
  std::map<std::uint64_t, TransferState*> sends_;                     // not over, by our wire id
  std::map<std::uint64_t, TransferState*> matched_receives_;          // by the peer's wire id
  std::map<std::uint64_t, std::shared_ptr<ImportedRegion>> imports_;  // null: requested
  std::set<std::uint64_t> retried_imports_;                           // serials of `imports_`
  bool lost_ = false;
  std::uint64_t last_sequence_ = 0;
};

}  // namespace linkspan::engine
