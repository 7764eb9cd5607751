// base/fd_closer.hpp - closes file descriptors of other processes on threads that may stand still.
//
// close(2) of a TCP socket with SO_LINGER and unsent bytes waits as long as its maker chose; that
// of a file on FUSE waits for its server. A Unix socket closes what lies in it unread, and a
// listening one what lies in the connections that it has not accepted. So each Unix socket of a
// peer and each descriptor that came through one has a sink here; Fd::trust() ends that for what is
// known. Off the path of a byte: handshakes, imports and their ends. Threads: any thread. Closing
// threads start on demand, kThreads at most. Invariants: one process keeps one thread standing at
// most; each descriptor is closed once.
#pragma once

#include <cstddef>
#include <memory>

#include "base/clock.hpp"
#include "base/fd.hpp"

namespace linkspan::base {

class FdCloser {
 public:
  static constexpr std::size_t kThreads = 4;
  /// Descriptors that wait, of all processes: beyond it full() answers true.
  static constexpr std::size_t kMaxWaiting = 1024;
  /// The same of one process, while a close of it has stood for kPatience; and in any case.
  static constexpr std::size_t kMaxOfStanding = 64, kMaxOfOne = 1024;
  static constexpr Duration kPatience = std::chrono::seconds(1);

  FdCloser();
  FdCloser(const FdCloser&) = delete;
  FdCloser& operator=(const FdCloser&) = delete;
  /// As end(), with a deadline of a second.
  ~FdCloser();

  /// Returns a sink for a connection: its socket, and what comes through it.
  std::shared_ptr<FdSink> sink() const;
  /// Returns the sink of the process that made the other end of a Unix socket. All its connections
  /// share it, but where the kernel shows no number for the process (another PID namespace).
  std::shared_ptr<FdSink> sink_of(int socket) const;
  /// Whether new connections have to wait.
  bool full() const noexcept;
  /// Closes what waits, and joins its threads. timed_out: a close stands still; its thread stays
  /// until that ends, and closes the rest.
  Status end(Deadline deadline);

 private:
  struct State;
  struct Sink;
  const std::shared_ptr<State> state_;  // also the sinks' and the threads'
};

}  // namespace linkspan::base
