// tools/linkspan/tcpx/tcpx_bootstrap.hpp - the socket beside a plugin's connection: by it the
// client gets the server's handle, and both learn how the other has ended.
//
// On the wire: the server sends the 128 bytes of the handle as soon as the client has connected;
// later each side sends single bytes. Nothing is authenticated: for trusted networks.
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
  /// Listens on all interfaces for one client and gives it the handle.
  static Result<Bootstrap> serve(unsigned port, const transport::nccl_net::Handle& handle,
                                 base::Deadline deadline);
  /// Until a server is there; `handle`: out.
  static Result<Bootstrap> connect(const std::string& host, unsigned port,
                                   transport::nccl_net::Handle& handle, base::Deadline deadline);

  Status send(char byte, base::Deadline deadline) const;
  /// What the other side tells next. disconnected: it has gone.
  Result<char> receive(base::Deadline deadline) const;
  /// Sleeps for 20 us, or until the other side tells something. disconnected: it
  /// has gone.
  Status wait_briefly() const;

 private:
  explicit Bootstrap(base::Fd socket) : socket_(std::move(socket)) {}
  base::Fd socket_;
};

}  // namespace linkspan::tool
