// control/socket_address.hpp - where Engines find each other: Unix sockets, those with a bare name
// in a folder that only their user can enter, and TCP.
//
// Threads: any thread; names of hosts are resolved as tcp_socket.hpp says.
#pragma once

#include <sys/un.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "net/tcp_socket.hpp"

namespace linkspan::control {

struct Address {
  std::string path{};      ///< Of a Unix socket. Empty: TCP, and the two below count.
  std::string host{};      ///< A name or a number, which stands without brackets.
  std::uint16_t port = 0;  ///< 0: any that is free, for who listens.

  bool is_tcp() const noexcept { return path.empty(); }
  std::string to_string() const;  ///< "unix:/run/app/s", "tcp:127.0.0.1:4711", "tcp:[::1]:4711"
};

/// What to_string() says, or "/path"; a bare name is a socket in `folder`. invalid_argument: empty,
/// too long for a socket, no port, or of a scheme that this release does not have.
Result<Address> parse_address(std::string_view address, const std::string& folder);

/// Where that is; at least one. permission_denied: one is beyond loopback, and it may not leave the
/// host. not_found: no host of that name.
Result<std::vector<net::TcpAddress>> resolve(const Address& address, bool leaves_host);

/// Makes the folder (mode 0700) if there is none. permission_denied: it is no folder (a link
/// to one either), another user's, others may write to it, or it cannot be made there. not_found:
/// nor is its parent. The text has `setting`, by which the folder came, if any, and the remedy.
Status secure_folder(const std::string& folder, const std::string& setting = {});

Result<sockaddr_un> unix_address(const std::string& path);

struct Listening {
  base::Fd socket;
  Address at;  ///< With the real port.
  bool beyond_loopback = false;
  std::vector<base::Fd> beside{};  ///< The same port at more addresses.
};
/// As below, or as the listen_at() and resolve() of TCP; there also at the addresses `beside`,
/// which the first may be or include.
Result<Listening> listen_at(const Address& address, bool leaves_host,
                            std::span<const net::TcpAddress> beside = {});

/// A listening socket. busy: somebody listens there already. invalid_argument: a file is there that
/// is no socket.
Result<base::Fd> listen_at(const std::string& path);

/// Connects to the Unix socket at `path`, which may have a full queue: then it waits there for
/// `patience`. not_found: there is no socket. unreachable: no process listens at it. no_resource:
/// the queue stayed full, or a signal ended the wait. Another try may end differently.
Result<base::Fd> connect_to(const std::string& path, Duration patience = Duration::zero());

}  // namespace linkspan::control
