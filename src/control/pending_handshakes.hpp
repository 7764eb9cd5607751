// control/pending_handshakes.hpp - the incoming connections that are not ready, in bounded groups,
// and which of them may be closed to make room for a new one.
//
// Unix sockets are one group. Over TCP all addresses without a peer are one group, with a bound for
// each address. An address with a connected peer is a group of its own, for its data connections.
// Pure bookkeeping: the ConnectionTable knows which connection is silent.
// Threads: externally synchronised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "net/tcp_socket.hpp"

namespace linkspan::control {

class PendingHandshakes {
 public:
  /// Bounds of each group, and of one address without a peer.
  PendingHandshakes(std::size_t most, std::size_t most_of_address)
      : most_(most), most_of_address_(most_of_address) {}

  /// Returns what counts as one address: an IPv4 address or an IPv6 network of 64 bits. Empty: a
  /// Unix socket.
  static std::string source_of(const net::TcpAddress& address);

  /// Counts connected peers of an address.
  void add_peer(const std::string& source) { ++known_[source]; }
  void remove_peer(const std::string& source);

  void add(std::uint64_t id, const std::string& source,
           base::Time since = base::Clock::steady().now());
  void remove(std::uint64_t id) { pending_.erase(id); }
  /// Returns the handshakes of the full group that `source` belongs to, oldest first. nullopt:
  /// there is room.
  std::optional<std::vector<std::uint64_t>> eviction_candidates(const std::string& source) const;
  /// Makes room for one more of `source` if its group is full: passes the oldest silent handshake,
  /// else the oldest one of over a second, to `evict`. no_resource: there is none.
  Status make_room(const std::string& source, const std::function<bool(std::uint64_t)>& is_silent,
                   const std::function<void(std::uint64_t, const Status&)>& evict) const;

 private:
  struct PendingHandshake {
    std::string source;
    bool known;
    base::Time since;
  };
  bool has_peer(const std::string& source) const { return known_.contains(source); }

  const std::size_t most_, most_of_address_;
  std::map<std::uint64_t, PendingHandshake> pending_;  // ids grow, so the oldest comes first
  std::map<std::string, std::size_t> known_;           // peers by address
};

}  // namespace linkspan::control
