// transport/verbs/requested_access.hpp - access of this side to regions of one peer.
//
// The first batch on a region asks the peer for it, and is sent when the answer has come.
// On the path of a byte: a look-up for each batch.
// Threads: under its peer's mutex.
// Invariants: an access stays as long as a batch has it; once the peer wants it back, no batch gets
// it any more.
#pragma once

#include <map>
#include <span>

#include "transport/verbs/message_queue.hpp"
#include "transport/verbs/verbs_batch.hpp"

namespace linkspan::transport::verbs {

class RequestedAccess {
 public:
  explicit RequestedAccess(MessageQueue& messages) : messages_(messages) {}

  /// Returns the access for a batch, which has to release it. Asks the peer for it if that has not
  /// been done. unreachable: the peer takes it back.
  Result<RemoteAccess*> acquire(const WireKey& key);
  void release(const WireKey& key, RemoteAccess& access) noexcept;
  /// Returns to the peer what it wants back and no batch has any more.
  void advance();
  bool returns() const noexcept { return returns_; }  ///< advance() is to be called.

  /// Handles a peer's VerbsGranted. `refused`: gets the serial and why, if it is a refusal.
  struct Refusal {
    std::uint64_t serial = 0;
    Status why;
  };
  Status on_granted(std::span<const std::byte> bytes, Refusal& refused);
  /// Handles a peer's VerbsRevoke. `ends`: gets the access whose batches have to end at once.
  Status on_revoke(std::span<const std::byte> bytes, const RemoteAccess*& ends);

 private:
  MessageQueue& messages_;
  std::map<std::uint64_t, RemoteAccess> all_;  // by serial
  bool returns_ = false;
};

}  // namespace linkspan::transport::verbs
