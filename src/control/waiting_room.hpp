// control/waiting_room.hpp - the connections that others began and that are not ready, and which of
// them a newcomer finds in its way.
//
// Unix sockets have a room of their own. Over TCP each source address has one, and all strangers
// together; an address of which a peer is connected has a room that strangers do not share, for its
// data connections. Pure bookkeeping: Control knows who is silent.
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

class WaitingRoom {
 public:
  /// Of each room; of one address of strangers.
  WaitingRoom(std::size_t most, std::size_t most_of_address)
      : most_(most), most_of_address_(most_of_address) {}

  /// What counts as one address: of IPv6 a network of 64 bits. Empty: a Unix socket.
  static std::string source_of(const net::TcpAddress& address);

  /// A peer of that address is connected; no more.
  void know(const std::string& source) { ++known_[source]; }
  void forget(const std::string& source);

  void enter(std::uint64_t id, const std::string& source);
  void leave(std::uint64_t id) { guests_.erase(id); }
  bool has(std::uint64_t id) const { return guests_.contains(id); }
  std::size_t size() const noexcept { return guests_.size(); }
  /// Those of the room that is full for one of `source`, oldest first. None: there is room.
  std::optional<std::vector<std::uint64_t>> in_the_way(const std::string& source) const;

 private:
  struct Guest {
    std::string source;
    bool known;
  };
  bool knows(const std::string& source) const { return known_.contains(source); }

  const std::size_t most_, most_of_address_;
  std::map<std::uint64_t, Guest> guests_;     // ids grow, so the oldest come first
  std::map<std::string, std::size_t> known_;  // peers by address
};

}  // namespace linkspan::control
