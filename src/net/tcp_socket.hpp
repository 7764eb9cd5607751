// net/tcp_socket.hpp - TCP sockets of peers and of a store: listen, connect, and send and receive
// by a deadline.
//
// The system resolves names, which may take long; numbers and "localhost" take no time.
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

/// Resolves a host to at least one address. not_found: no host of that name.
Result<std::vector<TcpAddress>> resolve(const std::string& host, std::uint16_t port);
/// Returns OK for an address of this machine, else not_found.
Status is_local(const TcpAddress& address);
/// Returns a listening socket. busy: a process listens there. not_found: as is_local().
Result<base::Fd> listen_at(const TcpAddress& address);
Result<TcpAddress> address_of(const base::Fd& socket);
Result<TcpAddress> peer_of(int socket);  ///< Address of the other end.
/// Starts a connect. The socket becomes writable when it has succeeded or failed; connected()
/// returns which. unreachable: refused at once.
Result<base::Fd> begin_connect(const TcpAddress& address);
/// Starts a connect from the address `from`, by that interface if the kernel allows it (Linux 5.7
/// needs no privilege), else as it routes.
Result<base::Fd> begin_connect(const TcpAddress& address, const TcpAddress& from,
                               const std::string& interface);
/// Returns whether the connect succeeded. unreachable: no process accepts there.
Status connected(const base::Fd& socket, const TcpAddress& address);
/// Starts a connect and waits for it. Errors as connected().
Result<base::Fd> connect_to(const TcpAddress& address, base::Deadline deadline);
/// Sets the options of a connected or accepted socket. A failure is ignored.
void prepare(const base::Fd& socket) noexcept;
/// Also ends the connection after about `silence` (at least 2 s) if the host vanished, or accepts
/// nothing while bytes wait for it.
void prepare(const base::Fd& socket, Duration silence) noexcept;
/// Ends the connection after about `time`, a day at most, in which bytes wait for its host and it
/// acknowledges none. A failure is ignored.
void set_user_timeout(const base::Fd& socket, Duration time) noexcept;

/// Sends all bytes. disconnected, timed_out: an unknown part has arrived.
Status send_all(const base::Fd& socket, std::string_view bytes, base::Deadline deadline);
/// Receives at least one byte and at most `most`. disconnected: the other side has closed.
Result<std::string> receive_some(const base::Fd& socket, std::size_t most, base::Deadline deadline);

}  // namespace linkspan::net
