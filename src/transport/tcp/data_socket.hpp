// transport/tcp/data_socket.hpp - the socket of a data connection, encrypted or not.
//
// On the path of a byte: the system call that sends or receives it. No function blocks.
// Threads: send() the one that holds Sender::sending_, or the connection's thread if it is
// encrypted; traffic() and is_encrypted() any thread; the rest the connection's thread.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>

#include "base/fd.hpp"
#include "base/tls.hpp"

namespace linkspan::transport::tcp {

class DataSocket {
 public:
  /// `tls` is null or an end over `socket`.
  DataSocket(base::Fd socket, std::unique_ptr<base::TlsEnd> tls) noexcept
      : socket_(std::move(socket)), tls_(std::move(tls)) {}

  /// Returns the bytes sent; 0 if the socket is full. no_resource: the kernel lacks memory.
  /// unreachable: user memory cannot be read. disconnected: the socket takes no more.
  Result<std::size_t> send(std::span<iovec> parts);
  /// Returns the bytes received; 0 if none are here. unreachable: a destination is not mapped
  /// writable. disconnected: the peer has closed the socket.
  Result<std::size_t> receive(std::span<iovec> parts);

  int fd() const noexcept { return socket_.get(); }
  bool is_encrypted() const noexcept { return tls_ != nullptr; }
  /// Returns the bytes that the peer's kernel has acknowledged plus those received.
  std::uint64_t traffic() const noexcept;
  /// Makes the end of the socket a reset: what the kernels still have of it is dropped.
  void reset_on_close() noexcept;

 private:
  const base::Fd socket_;
  const std::unique_ptr<base::TlsEnd> tls_;  // null: not encrypted
};

}  // namespace linkspan::transport::tcp
