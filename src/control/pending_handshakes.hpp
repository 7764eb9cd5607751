// control/pending_handshakes.hpp - the connections that others began and that are not ready, and
// which of them a newcomer finds in its way.
//
// Unix sockets have a room of their own. Over TCP each source address has one, and all strangers
// together; an address of which a peer is connected has a room that strangers do not share, for its
// data connections. Pure bookkeeping: Control has_peer who is silent.
// Threads: externally synchronised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "net/tcp_socket.hpp"

namespace linkspan::control {

class PendingHandshakes {
 public:
  /// Of each room; of one address of strangers.
  PendingHandshakes(std::size_t most, std::size_t most_of_address)
      : most_(most), most_of_address_(most_of_address) {}

  /// What counts as one address: of IPv6 a network of 64 bits. Empty: a Unix socket.
  static std::string source_of(const net::TcpAddress& address);

  /// A peer of that address is connected; no more.
  void add_peer(const std::string& source) { ++known_[source]; }
  void remove_peer(const std::string& source);

  void add(std::uint64_t id, const std::string& source);
  void remove(std::uint64_t id) { pending_.erase(id); }
  bool has(std::uint64_t id) const { return pending_.contains(id); }
  std::size_t size() const noexcept { return pending_.size(); }
  /// Those of the room that is full for one of `source`, oldest first. None: there is room.
  std::optional<std::vector<std::uint64_t>> eviction_candidates(const std::string& source) const;

 private:
  struct PendingHandshake {
    std::string source;
    bool known;
  };
  bool has_peer(const std::string& source) const { return known_.contains(source); }

  const std::size_t most_, most_of_address_;
  std::map<std::uint64_t, PendingHandshake> pending_;  // ids grow, so the oldest come first
  std::map<std::string, std::size_t> known_;           // peers by address
};

}  // namespace linkspan::control
