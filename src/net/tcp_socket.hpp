// net/tcp_socket.hpp - TCP sockets of peers and of a store: where they listen and connect, and
// bytes through them by a deadline.
//
// Names are resolved by the system, which takes its own time; numbers and "localhost" take none.
// Threads: any thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"

namespace linkspan::net {

struct TcpAddress {
  sockaddr_storage raw{};
  socklen_t bytes = 0;

  bool is_loopback() const noexcept;
  std::string host() const;  ///< "127.0.0.1", "::1"
  std::uint16_t port() const noexcept;
  std::string to_string() const;  ///< "127.0.0.1:9998", "[::1]:9998"
  TcpAddress with_port(std::uint16_t port) const noexcept;
};

/// At least one. not_found: nobody of that name.
Result<std::vector<TcpAddress>> resolve(const std::string& host, std::uint16_t port);
/// not_found: it is not an address of this machine.
Status is_local(const TcpAddress& address);
/// busy: somebody listens there. not_found: as is_local().
Result<base::Fd> listen_at(const TcpAddress& address);
Result<TcpAddress> address_of(const base::Fd& socket);
Result<TcpAddress> peer_of(int socket);  ///< Of the other end.
/// A socket that is writable once it is connected, or not: connected() tells. unreachable: nobody
/// accepts there, as is known at once.
Result<base::Fd> begin_connect(const TcpAddress& address);
/// From that address of this machine; by that interface, as far as the kernel lets us (Linux 5.7
/// asks for no privilege), else as it routes.
Result<base::Fd> begin_connect(const TcpAddress& address, const TcpAddress& from,
                               const std::string& interface);
/// unreachable: nobody accepts there, now.
Status connected(const base::Fd& socket, const TcpAddress& address);
/// Both, as connected().
Result<base::Fd> connect_to(const TcpAddress& address, base::Deadline deadline);
/// For a socket that was accepted as well. No failure of it is one of the connection.
void prepare(const base::Fd& socket) noexcept;
/// As that, and a host that vanished ends the connection within about `silence`, of 2 s at least:
/// so does one that takes nothing for as long while bytes wait for it.
void prepare(const base::Fd& socket, Duration silence) noexcept;

/// All of it. disconnected, timed_out: nobody knows how much of it arrived.
Status send_all(const base::Fd& socket, std::string_view bytes, base::Deadline deadline);
/// At least one byte, and what else is there up to `most`. disconnected: the other side has closed.
Result<std::string> receive_some(const base::Fd& socket, std::size_t most, base::Deadline deadline);

}  // namespace linkspan::net
