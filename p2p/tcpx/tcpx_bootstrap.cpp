#include "p2p/tcpx/tcpx_bootstrap.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "net/staggered_connect.hpp"

namespace linkspan::tool {
namespace {

using transport::nccl_net::Handle;

std::string_view bytes_of(const Handle& handle) {
  return {reinterpret_cast<const char*>(handle.data()), handle.size()};
}

}  // namespace

Result<Bootstrap> Bootstrap::serve(unsigned port, const Handle& handle, base::Deadline deadline) {
  auto addresses = net::resolve("0.0.0.0", static_cast<std::uint16_t>(port));
  if (!addresses.ok()) return addresses.status();
  auto listening = net::listen_at(addresses->front());
  if (!listening.ok()) return listening.status();
  pollfd ready{.fd = listening->get(), .events = POLLIN, .revents = 0};
  for (;;) {
    if (deadline.passed())
      return Status(Code::timed_out, Scope::peer,
                    "no client has come to port " + std::to_string(port));
    if (::poll(&ready, 1, deadline.left_ms()) <= 0) continue;
    base::Fd client(::accept4(listening->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client.valid() && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
      continue;  // the socket is gone already
    if (!client.valid())
      return Status(Code::system, Scope::process,
                    "accept4: " + std::generic_category().message(errno));
    net::prepare(client);
    if (Status status = net::send_all(client, bytes_of(handle), deadline); !status.ok())
      return status;
    return Bootstrap(std::move(client));
  }
}

Result<Bootstrap> Bootstrap::connect(const std::string& host, unsigned port, Handle& handle,
                                     base::Deadline deadline) {
  auto addresses = net::resolve(host, static_cast<std::uint16_t>(port));
  if (!addresses.ok()) return addresses.status();
  for (;;) {
    auto socket = net::connect_to(*addresses, deadline);
    if (!socket.ok()) {
      if (socket.status().code() != Code::unreachable || deadline.passed()) return socket.status();
      ::poll(nullptr, 0, 100);  // the server may start later
      continue;
    }
    for (std::size_t at = 0; at < handle.size();) {
      auto some = net::receive_some(*socket, handle.size() - at, deadline);
      if (!some.ok()) return some.status();
      std::memcpy(handle.data() + at, some->data(), some->size());
      at += some->size();
    }
    return Bootstrap(*std::move(socket));
  }
}

Status Bootstrap::send(char byte, base::Deadline deadline) const {
  return net::send_all(socket_, {&byte, 1}, deadline);
}

Result<char> Bootstrap::receive(base::Deadline deadline) const {
  auto some = net::receive_some(socket_, 1, deadline);
  if (!some.ok()) return some.status();
  return some->front();
}

Status Bootstrap::wait_briefly() const {
  pollfd ready{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  const timespec moment{.tv_sec = 0, .tv_nsec = 20'000};
  if (::ppoll(&ready, 1, &moment, nullptr) <= 0) return {};
  char byte = 0;
  if (::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0) return {};
  return {Code::disconnected, Scope::peer, "the other side has closed"};
}

}  // namespace linkspan::tool
