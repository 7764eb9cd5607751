// p2p/tcpx/tcpx_bootstrap.hpp - the socket beside a plugin's connection: the client gets
// the server's handle over it, and each side learns how the other ended.
//
// On the wire: the server sends the 128 bytes of the handle once the client has connected; later
// each side sends single bytes. Nothing is authenticated: for trusted networks.
// Threads: the main thread.
#pragma once

#include <span>
#include <string>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "transport/nccl_net/comm.hpp"

namespace linkspan::tool {

class Bootstrap {
 public:
  /// Listens on all interfaces for one client, and sends it the handle.
  static Result<Bootstrap> serve(unsigned port, const transport::nccl_net::Handle& handle,
                                 base::Deadline deadline);
  /// Connects, retrying until a server listens, and stores its handle in `handle`.
  static Result<Bootstrap> connect(const std::string& host, unsigned port,
                                   transport::nccl_net::Handle& handle, base::Deadline deadline);

  Status send(char byte, base::Deadline deadline) const;
  /// Returns the next byte of the other side. disconnected: it has closed.
  Result<char> receive(base::Deadline deadline) const;
  /// Sleeps for 20 us, or until the other side sends a byte. disconnected: it has closed.
  Status wait_briefly() const;

 private:
  explicit Bootstrap(base::Fd socket) : socket_(std::move(socket)) {}
  base::Fd socket_;
};

}  // namespace linkspan::tool
