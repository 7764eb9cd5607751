// base/fd_closer.hpp - closes file descriptors of other processes on threads that may block.
//
// close(2) of a TCP socket with SO_LINGER and unsent bytes blocks as long as its creator chose;
// that of a file on FUSE waits for its server. A Unix socket also closes the descriptors that lie
// in it unread, and a listening one those of connections that it has not accepted. So each Unix
// socket of a peer and each descriptor received through one has a sink here. Fd::trust() removes
// the sink once the kind of the descriptor is known. Off the path of a byte: handshakes, imports
// and their ends. Threads: any thread. Closing threads start on demand, at most kThreads.
// Invariants: one process blocks at most one thread; each descriptor is closed once.
#pragma once

#include <cstddef>
#include <memory>

#include "base/clock.hpp"
#include "base/fd.hpp"

namespace linkspan::base {

class FdCloser {
 public:
  static constexpr std::size_t kThreads = 4;
  /// Queued descriptors of all processes; full() returns true from there.
  static constexpr std::size_t kMaxWaiting = 1024;
  /// Queued descriptors of one process: while one of its closes has blocked for kPatience, and in
  /// any case.
  static constexpr std::size_t kMaxOfStanding = 64, kMaxOfOne = 1024;
  static constexpr Duration kPatience = std::chrono::seconds(1);

  FdCloser();
  FdCloser(const FdCloser&) = delete;
  FdCloser& operator=(const FdCloser&) = delete;
  /// Calls end() with a deadline of a second.
  ~FdCloser();

  /// Returns a sink for a connection: its socket and the descriptors received through it.
  std::shared_ptr<FdSink> sink() const;
  /// Returns the sink of the process at the other end of a Unix socket. All its connections share
  /// it, unless the kernel shows no pid (another PID namespace).
  std::shared_ptr<FdSink> sink_of(int socket) const;
  /// Returns true if new connections must wait.
  bool full() const noexcept;
  /// Closes what is queued and joins the threads. timed_out: a close blocks; its thread lives until
  /// that returns, and closes the rest.
  Status end(Deadline deadline);

 private:
  struct FdCloserState;
  struct Sink;
  const std::shared_ptr<FdCloserState> state_;  // also the sinks' and the threads'
};

}  // namespace linkspan::base
