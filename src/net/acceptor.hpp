// net/acceptor.hpp - a listening socket in an event loop.
//
// Accepts a few connections at a time, because connected peers wait for the same thread. New
// connections wait in the socket's queue while the kernel has no room (fds, memory), while too many
// descriptors block in close(2), and while they exceed the rate.
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
  /// Passes each connection, non-blocking, to `accept`. A `closer` outlives the Acceptor and closes
  /// connections of Unix sockets, each with a sink of its own.
  Acceptor(asio::io_context& io, std::function<void(base::Fd)> accept,
           const base::FdCloser* closer = nullptr);
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;
  ~Acceptor() { stop(); }

  /// Limits accepted connections to `a_second`, with bursts of `burst`; the others wait in the
  /// socket's queue. Default: no limit.
  void limit_rate(unsigned a_second, unsigned burst) {
    each_ = std::chrono::nanoseconds(std::chrono::seconds(1)) / a_second;
    burst_ = burst * each_;
  }
  /// Replaces the previous socket. `path` is unlinked with the Unix socket.
  Status listen(base::Fd socket, std::string path = {});
  void stop();
  /// Resumes waiting after an exception of the event loop, if memory was exhausted when the wait
  /// began.
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
  Duration each_{0}, burst_{0};  // time that each connection consumes; 0: no limit
  base::Time spent_until_{};     // time consumed by accepted connections
  bool waits_ = false;           // for the socket, or for the end of the pause
};

}  // namespace linkspan::net
