// transport/verbs/access_table.hpp - which peers have access to which regions of this side.
//
// A remote key lets a peer's network card touch memory without this side. So a peer gets it only on
// request, once it has shown the region's token (VerbsEndpoint), and the owner knows whom it must
// ask before the memory goes away.
// Off the path of a byte.
// Threads: any thread, except as marked.
// Invariants: a peer is in a region's list from the answer to its request until it has returned the
// access, or its queue pairs here have ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

#include "base/mutex.hpp"
#include "transport/channel.hpp"

namespace linkspan::transport::verbs {

/// Tells a peer that a region's access ends.
struct Revocation {
  std::uint64_t serial = 0;
  bool immediately = false;
};

/// One peer of the table. Threads: `pending` any thread; the rest under the table's mutex.
struct AccessHolder {
  explicit AccessHolder(Channel& to) : channel(to) {}
  Channel& channel;
  std::atomic<bool> pending{false};  ///< take() has something.
  std::vector<Revocation> queue;
};

class AccessTable {
 public:
  void remove(AccessHolder& holder) noexcept LINKSPAN_EXCLUDES(mutex_);
  /// Adds an access. The caller has a use of the region meanwhile, so revoke() comes later.
  void grant(AccessHolder& holder, std::uint64_t serial) LINKSPAN_EXCLUDES(mutex_);
  void on_returned(AccessHolder& holder, std::uint64_t serial) LINKSPAN_EXCLUDES(mutex_);
  /// Returns true if no peer has access. Otherwise asks those that have for it, once, or once more
  /// when it is immediate.
  bool revoke(std::uint64_t serial, bool immediately) LINKSPAN_EXCLUDES(mutex_);
  /// Returns what is to be told to the peer.
  std::vector<Revocation> take(AccessHolder& holder) LINKSPAN_EXCLUDES(mutex_);

 private:
  struct Access {
    AccessHolder* holder = nullptr;
    bool asked = false, asked_immediately = false;
  };

  base::Mutex mutex_;
  std::map<std::uint64_t, std::vector<Access>> all_ LINKSPAN_GUARDED_BY(mutex_);  // by serial
};

}  // namespace linkspan::transport::verbs
