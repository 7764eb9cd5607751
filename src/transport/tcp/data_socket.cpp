#include "transport/tcp/data_socket.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "memory/validate_allocation.hpp"

namespace linkspan::transport::tcp {
namespace {

/// Calls sendmsg() or recvmsg() until no signal interrupts it.
template <class Call>
ssize_t uninterrupted(std::span<iovec> parts, const Call& call) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  ssize_t bytes = -1;
  do bytes = call(message);
  while (bytes < 0 && errno == EINTR);
  return bytes;
}

/// Returns 0 for a call that would block. `failed` begins the text of a lasting error.
Result<std::size_t> end_of_call(int error, const char* failed) {
  if (error == EFAULT) return memory::freed_early();
  if (error == EAGAIN || error == EWOULDBLOCK) return std::size_t{0};
  return Status(Code::disconnected, Scope::peer, failed + std::generic_category().message(error));
}

}  // namespace

Result<std::size_t> DataSocket::send(std::span<iovec> parts) {
  if (tls_ != nullptr) return tls_->send(parts);
  const ssize_t sent = uninterrupted(parts, [&](const msghdr& message) {
    return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  });
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (errno == ENOBUFS) return Status::no_resource();
  return end_of_call(errno, "a data connection takes no more: ");
}

Result<std::size_t> DataSocket::receive(std::span<iovec> parts) {
  if (tls_ != nullptr) return tls_->receive(parts);
  const ssize_t got = uninterrupted(
      parts, [&](msghdr& message) { return ::recvmsg(socket_.get(), &message, MSG_DONTWAIT); });
  if (got > 0) return static_cast<std::size_t>(got);
  if (got == 0)
    return Status(Code::disconnected, Scope::peer, "the peer has closed a data connection");
  return end_of_call(errno, "a data connection brings no more: ");
}

std::uint64_t DataSocket::traffic() const noexcept {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  (void)::getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &bytes);
  return info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

void DataSocket::reset_on_close() noexcept {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

}  // namespace linkspan::transport::tcp
