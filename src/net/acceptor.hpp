// net/acceptor.hpp - a listening socket in an event loop.
//
// It takes a few connections at a time, for those who are connected wait for that thread too. Where
// the kernel has no room for more (fds, memory) who knocks waits in the socket's queue; so it does
// while too many descriptors stand still in close(2), and where more come than the rate allows.
// Threads: the event loop's.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <string>

#include "base/fd_closer.hpp"
#include "linkspan/status.hpp"

namespace linkspan::net {

class Acceptor {
 public:
  /// `accept` is given each connection, which does not block. A `closer` outlives it: of Unix
  /// sockets, each with a sink of its own.
  Acceptor(asio::io_context& io, std::function<void(base::Fd)> accept,
           const base::FdCloser* closer = nullptr);
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;
  ~Acceptor() { stop(); }

  /// Takes so many in a second, and `burst` at once after a quiet while; the others wait in the
  /// socket's queue. Without this there is no bound.
  void limit_rate(unsigned a_second, unsigned burst) {
    each_ = std::chrono::nanoseconds(std::chrono::seconds(1)) / a_second;
    burst_ = burst * each_;
  }
  /// In the place of the one before. A `path` is a Unix socket's, and goes with it.
  Status listen(base::Fd socket, std::string path = {});
  void stop();
  /// Waits again after an exception of the event loop, if memory had ended just when it was to
  /// wait.
  void resume() {
    if (listening_.is_open() && !waits_) accept_next();
  }

 private:
  bool is_within_rate();
  void accept_next();
  void accept_after(Duration pause);
  void remove_path() noexcept;

  const std::function<void(base::Fd)> accept_;
  const base::FdCloser* const closer_;
  asio::posix::stream_descriptor listening_;
  asio::steady_timer pause_;
  std::string path_;
  Duration each_{0}, burst_{0};  // what each takes of the rate's time; no bound: 0
  base::Time spent_until_{};     // of the rate's time, by those who were taken
  bool waits_ = false;           // for the socket, or for the pause to end
};

}  // namespace linkspan::net
