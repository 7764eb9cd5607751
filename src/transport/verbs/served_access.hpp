// transport/verbs/served_access.hpp - answers one peer's requests for access to regions of this
// side, and takes the access back.
//
// Off the path of a byte.
// Threads: under its peer's mutex.
// Invariants: a peer gets remote keys only of regions of which it has shown the token.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "transport/verbs/access_table.hpp"
#include "transport/verbs/message_queue.hpp"

namespace linkspan::transport::verbs {

class VerbsTransport;

class ServedAccess {
 public:
  /// Bounds of the time until a peer returns an access.
  static constexpr Duration kMaxReturn = std::chrono::seconds(10),
                            kMaxReturnImmediately = std::chrono::seconds(1);

  ServedAccess(VerbsTransport& transport, MessageQueue& messages);
  ServedAccess(const ServedAccess&) = delete;
  ServedAccess& operator=(const ServedAccess&) = delete;
  ~ServedAccess();

  /// Handles a peer's VerbsAccess and VerbsReturned.
  Status on_access(std::span<const std::byte> bytes);
  Status on_returned(std::span<const std::byte> bytes);
  /// Tells the peer what it has to return. What it keeps for too long counts as returned: its
  /// requests on the region then fail, and its queue pair with them.
  void advance(base::Time now);
  /// Takes back everything: the peer is gone, and its queue pairs too.
  void end() noexcept;
  bool has_news() const noexcept { return holder_.pending || !unasked_.empty(); }
  bool awaits_peer() const noexcept { return !asked_.empty(); }

 private:
  VerbsTransport& transport_;
  MessageQueue& messages_;
  AccessHolder holder_;
  std::vector<Revocation> unasked_;            // taken out of holder_
  std::map<std::uint64_t, base::Time> asked_;  // by serial: when it is overdue
  bool ended_ = false;
};

}  // namespace linkspan::transport::verbs
