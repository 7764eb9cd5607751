// net/staggered_connect.hpp - a TCP connection to a host that has several addresses: the one
// way by which Engines, clients of a store and tools reach a host by its name.
//
// As RFC 8305 ("Happy Eyeballs"): an attempt at the next address begins 250 ms after the one
// before, or when that one has failed, and the first that connects is taken. So an address that
// takes SYNs in silence costs a quarter of a second and not the deadline. Threads: any thread;
// polls the thread's InterruptCheck.
#pragma once

#include <span>

#include "net/tcp_socket.hpp"

namespace linkspan::net {

inline constexpr Duration kConnectStagger = std::chrono::milliseconds(250);
/// How long the last attempt may be silent before the caller may look at something else.
inline constexpr Duration kConnectPatience = std::chrono::seconds(3);

/// Returns a socket that is connected to one of `addresses`, of which there is at least one. The
/// text of a failure has each address. unreachable: none accepts now, or has answered within
/// kConnectPatience. timed_out: by the deadline. canceled: interrupted.
Result<base::Fd> connect_to(std::span<const TcpAddress> addresses, base::Deadline deadline);

}  // namespace linkspan::net
