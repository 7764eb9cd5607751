// control/listeners.hpp - the sockets at which an Engine listens: one Unix socket, and TCP at one
// or more addresses with the same port. Off the path of a byte.
//
// Threads: listen(), any thread; all else on the Control thread.
#pragma once

#include <asio/io_context.hpp>
#include <deque>
#include <functional>
#include <string>

#include "control/session.hpp"
#include "control/socket_address.hpp"
#include "net/acceptor.hpp"

namespace linkspan::control {

class Listeners {
 public:
  /// Passes each connection to `accept`, on the Control thread. `us` and `log` outlive the object.
  Listeners(asio::io_context& io, const Identity& us, const base::Log& log,
            std::function<void(base::Fd)> accept);

  /// Listens as ControlPlane::listen() describes. After stop() the socket is closed again.
  Result<SocketAddress> listen(const SocketAddress& address);
  void stop();
  void resume();  ///< Calls net::Acceptor::resume() for all.

 private:
  void start(Listening listening);
  void start(net::Acceptor& acceptor, base::Fd socket, std::string path = {});

  asio::io_context& io_;
  const Identity& us_;
  const base::Log& log_;
  const std::function<void(base::Fd)> accept_;
  net::Acceptor unix_;
  std::deque<net::Acceptor> tcp_;  // by address; stopped ones stay, because handlers refer to them
  bool stopped_ = false;
};

}  // namespace linkspan::control
