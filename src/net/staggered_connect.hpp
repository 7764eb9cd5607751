// net/staggered_connect.hpp - connects by TCP to a host with several addresses. Engines, clients of
// a store and tools all connect through it.
//
// Follows RFC 8305 ("Happy Eyeballs"): the attempt at the next address begins 250 ms after the
// previous one, or when that one has failed, and the first connection wins. So an address that
// drops SYNs costs a quarter of a second, not the whole deadline. Threads: any thread; polls the
// thread's InterruptCheck.
#pragma once

#include <span>

#include "net/tcp_socket.hpp"

namespace linkspan::net {

inline constexpr Duration kConnectStagger = std::chrono::milliseconds(250);
/// How long the last attempt may stay unanswered before connect_to() returns.
inline constexpr Duration kConnectPatience = std::chrono::seconds(3);

/// Returns a socket connected to one of `addresses`, which is not empty. The text of a failure has
/// each address. unreachable: none accepts, or none answered within kConnectPatience. timed_out:
/// none answered by the deadline. canceled: interrupted.
Result<base::Fd> connect_to(std::span<const TcpAddress> addresses, base::Deadline deadline);

}  // namespace linkspan::net
