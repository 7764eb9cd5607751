// control/socket_address.hpp - addresses of Engines: Unix sockets, with bare names in a folder that
// only their user can enter, and TCP.
//
// Threads: any thread; host names are resolved as net/tcp_socket.hpp describes.
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

inline constexpr std::size_t kMaxAddresses = 64;  ///< Of one Engine, in one text.

struct SocketAddress {
  std::string path{};             ///< Path of a Unix socket. Empty: TCP, with host and port.
  std::string host{};             ///< A name, or a number without brackets.
  std::uint16_t port = 0;         ///< 0: the kernel chooses one to listen at.
  std::uint64_t incarnation = 0;  ///< Of the Engine that listens there. 0: any.

  bool is_tcp() const noexcept { return path.empty(); }
  /// Returns "unix:/run/app/s", "tcp:127.0.0.1:4711" or "tcp:[::1]:4711"; with an incarnation and
  /// its 16 digits behind it: "unix:/run/app/s#01c5529aa6ec45a8".
  std::string to_string() const;
};

/// Parses the text of to_string(), "/path", or a bare name of a socket in `folder`.
/// invalid_argument: empty, too long for a socket, without a port, or of an unknown scheme.
Result<SocketAddress> parse_address(std::string_view address, const std::string& folder);
/// Parses 1 to 64 addresses with commas between them; those after the first begin with their
/// scheme.
Result<std::vector<SocketAddress>> parse_addresses(std::string_view list,
                                                   const std::string& folder);

/// Resolves a TCP address to at least one. permission_denied: one is beyond loopback, and
/// `leaves_host` is false. not_found: no host of that name.
Result<std::vector<net::TcpAddress>> resolve(const SocketAddress& address, bool leaves_host);

/// Creates the folder (mode 0700) if it is missing. permission_denied: it is not a folder (a
/// symbolic link counts as none), belongs to another user, is writable by others, or cannot be
/// created. not_found: its parent is missing too. The text has `setting`, which named the folder,
/// and the remedy.
Status secure_folder(const std::string& folder, const std::string& setting = {});

Result<sockaddr_un> unix_address(const std::string& path);

struct Listening {
  base::Fd socket;
  SocketAddress at;  ///< With the actual port.
  bool beyond_loopback = false;
  std::vector<base::Fd> beside{};  ///< Sockets at more addresses, with the same port.
};
/// Listens at a Unix socket as below, or at TCP as resolve() and net::listen_at(). TCP listens at
/// the addresses `beside` too, which may include the first.
Result<Listening> listen_at(const SocketAddress& address, bool leaves_host,
                            std::span<const net::TcpAddress> beside = {});

/// Returns a listening Unix socket. busy: a process listens there already. invalid_argument: the
/// path is a file that is not a socket.
Result<base::Fd> listen_at(const std::string& path);

/// Connects to the Unix socket at `path`. Waits up to `patience` while its queue is full.
/// not_found: there is no socket. unreachable: no process listens. no_resource: the queue stayed
/// full, or a signal ended the wait; a retry may succeed.
Result<base::Fd> connect_to(const std::string& path, Duration patience = Duration::zero());

}  // namespace linkspan::control
