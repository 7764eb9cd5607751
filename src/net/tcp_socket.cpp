#include "net/tcp_socket.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

namespace linkspan::net {
namespace {

const sockaddr* raw(const TcpAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.raw);
}

Result<base::Fd> new_tcp_socket(const TcpAddress& address) {
  return base::Fd::from(
      "socket", ::socket(address.raw.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

Status socket_failed(const std::string& what, int error, Code code) {
  return {code, Scope::peer, what + ": " + std::generic_category().message(error)};
}

Result<base::Fd> begin(base::Fd socket, const TcpAddress& address) {
  if (::connect(socket.get(), raw(address), address.bytes) != 0 && errno != EINPROGRESS)
    return socket_failed("connect to " + address.to_string(), errno, Code::unreachable);
  return socket;
}

/// Waits for the events. Returns false if the deadline has passed.
bool wait_for(const base::Fd& socket, short events, base::Deadline deadline) {
  pollfd ready{.fd = socket.get(), .events = events, .revents = 0};
  return ::poll(&ready, 1, deadline.left_ms()) > 0 || !deadline.passed();
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

bool TcpAddress::is_loopback() const noexcept {
  if (raw.ss_family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, &raw, sizeof four);
    return ntohl(four.sin_addr.s_addr) >> 24 == 127;
  }
  sockaddr_in6 six{};
  std::memcpy(&six, &raw, sizeof six);
  return raw.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six.sin6_addr);
}

std::uint16_t TcpAddress::port() const noexcept {
  sockaddr_in four{};  // the port has the same place in sockaddr_in6
  std::memcpy(&four, &raw, sizeof four);
  return ntohs(four.sin_port);
}

TcpAddress TcpAddress::with_port(std::uint16_t port) const noexcept {
  TcpAddress out = *this;
  const std::uint16_t wire = htons(port);
  std::memcpy(reinterpret_cast<char*>(&out.raw) + offsetof(sockaddr_in, sin_port), &wire,
              sizeof wire);
  return out;
}

std::string TcpAddress::host() const {
  std::array<char, NI_MAXHOST> name{};
  if (::getnameinfo(net::raw(*this), bytes, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST) !=
      0)
    return "?";
  return name.data();
}

std::string TcpAddress::to_string() const {
  return (raw.ss_family == AF_INET6 ? "[" + host() + "]" : host()) + ":" + std::to_string(port());
}

Result<std::vector<TcpAddress>> resolve(const std::string& host, std::uint16_t port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (error != 0)
    return Status(Code::not_found, Scope::request,
                  "host \"" + host + "\": " + ::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::vector<TcpAddress> out;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (each->ai_family != AF_INET && each->ai_family != AF_INET6) continue;
    TcpAddress address;
    address.bytes = each->ai_addrlen;
    std::memcpy(&address.raw, each->ai_addr, each->ai_addrlen);
    out.push_back(address);
  }
  if (out.empty())
    return Status(Code::not_found, Scope::request, "host \"" + host + "\" has no IP address");
  return out;
}

Status is_local(const TcpAddress& address) {
  auto socket = new_tcp_socket(address);
  if (!socket.ok()) return socket.status();
  const TcpAddress any_port = address.with_port(0);
  if (::bind(socket->get(), raw(any_port), any_port.bytes) == 0) return {};
  return socket_failed("bind to " + address.to_string(), errno, Code::not_found);
}

Result<base::Fd> listen_at(const TcpAddress& address) {
  auto socket = new_tcp_socket(address);
  if (!socket.ok()) return socket;
  const int yes = 1;  // connections of an earlier server may linger
  (void)::setsockopt(socket->get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const bool bound = ::bind(socket->get(), raw(address), address.bytes) == 0;
  if (bound && ::listen(socket->get(), SOMAXCONN) == 0) return socket;
  const int error = errno;
  return socket_failed("listen at " + address.to_string(), error,
                       error == EADDRINUSE      ? Code::busy
                       : error == EADDRNOTAVAIL ? Code::not_found
                       : error == EACCES        ? Code::permission_denied
                                                : Code::system);
}

Result<TcpAddress> address_of(const base::Fd& socket) {
  TcpAddress address;
  address.bytes = sizeof address.raw;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address.raw), &address.bytes) != 0)
    return socket_failed("getsockname", errno, Code::system);
  return address;
}

Result<TcpAddress> peer_of(int socket) {
  TcpAddress address;
  address.bytes = sizeof address.raw;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address.raw), &address.bytes) != 0)
    return socket_failed("getpeername", errno, Code::system);
  return address;
}

Result<base::Fd> begin_connect(const TcpAddress& address) {
  auto socket = new_tcp_socket(address);
  return socket.ok() ? begin(*std::move(socket), address) : std::move(socket);
}

Result<base::Fd> begin_connect(const TcpAddress& address, const TcpAddress& from,
                               const std::string& interface) {
  auto socket = new_tcp_socket(address);
  if (!socket.ok()) return socket;
  const int yes = 1;  // the port is chosen in connect(), so that many are free for each destination
  (void)::setsockopt(socket->get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof yes);
  (void)::setsockopt(socket->get(), SOL_SOCKET, SO_BINDTODEVICE, interface.c_str(),
                     static_cast<socklen_t>(interface.size()));
  if (::bind(socket->get(), raw(from), from.bytes) != 0)
    return socket_failed("bind to " + from.host(), errno, Code::unreachable);
  return begin(*std::move(socket), address);
}

Status connected(const base::Fd& socket, const TcpAddress& address) {
  const std::string what = "connect to " + address.to_string();
  int error = 0;
  socklen_t bytes = sizeof error;
  (void)::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  if (error != 0) return socket_failed(what, error, Code::unreachable);
  // The kernel may have chosen the very port that this socket connects to; then it is connected to
  // itself.
  const auto ours = address_of(socket), theirs = peer_of(socket.get());
  if (ours.ok() && theirs.ok() && ours->to_string() == theirs->to_string())
    return {Code::unreachable, Scope::peer, what + ": nobody listens"};
  prepare(socket);
  return {};
}

Result<base::Fd> connect_to(const TcpAddress& address, base::Deadline deadline) {
  auto socket = begin_connect(address);
  if (!socket.ok()) return socket;
  pollfd ready{.fd = socket->get(), .events = POLLOUT, .revents = 0};
  while (::poll(&ready, 1, deadline.left_ms()) <= 0)
    if (deadline.passed())
      return Status(Code::timed_out, Scope::peer,
                    "connect to " + address.to_string() + ": no answer");
  if (Status status = connected(*socket, address); !status.ok()) return status;
  return socket;
}

void prepare(const base::Fd& socket) noexcept {
  const int yes = 1;
  (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
}

void prepare(const base::Fd& socket, Duration silence) noexcept {
  prepare(socket);
  const auto set = [&](int option, auto value) {
    const int number = static_cast<int>(std::max<std::int64_t>(value.count(), 1));
    (void)::setsockopt(socket.get(), IPPROTO_TCP, option, &number, sizeof number);
  };
  using std::chrono::duration_cast, std::chrono::seconds;
  set(TCP_KEEPIDLE, duration_cast<seconds>(silence / 2));
  set(TCP_KEEPINTVL, duration_cast<seconds>(silence / 5));
  // Replaces the count of keep-alive probes. Also works while unacknowledged bytes suppress probes.
  set_user_timeout(socket, silence);
}

void set_user_timeout(const base::Fd& socket, Duration time) noexcept {
  using std::chrono::milliseconds;
  const auto ms = std::chrono::duration_cast<milliseconds>(
      std::clamp<Duration>(time, milliseconds(1), std::chrono::hours(24)));
  const int number = static_cast<int>(ms.count());
  (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &number, sizeof number);
}

Status send_all(const base::Fd& socket, std::string_view bytes, base::Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (!would_block(errno)) {
      return socket_failed("the other side has gone", errno, Code::disconnected);
    } else if (!wait_for(socket, POLLOUT, deadline)) {
      return {Code::timed_out, Scope::peer, "the other side takes no more bytes"};
    }
  }
  return {};
}

Result<std::string> receive_some(const base::Fd& socket, std::size_t most,
                                 base::Deadline deadline) {
  std::string bytes(most, '\0');
  for (;;) {
    const ssize_t got = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes.resize(static_cast<std::size_t>(got));
      return bytes;
    }
    if (got == 0)
      return Status(
          Code::disconnected, Scope::peer,
          "the other side has closed the connection: it has ended, or refused what it was asked");
    if (!would_block(errno))
      return socket_failed("the other side has gone", errno, Code::disconnected);
    if (!wait_for(socket, POLLIN, deadline))
      return Status(Code::timed_out, Scope::peer, "the other side has not answered");
  }
}

}  // namespace linkspan::net
