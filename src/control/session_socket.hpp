// control/session_socket.hpp - the socket of a Session: frames that any thread queues, and the
// request to send those that find no room. Off the path of a byte.
//
// Threads: any thread.
// Invariants: a frame that was queued is sent, or the connection ends.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <span>

#include "base/fd_channel.hpp"
#include "base/mutex.hpp"
#include "control/handshake.hpp"

namespace linkspan::control {

/// Sends the queued frames of Sessions. The control plane implements it.
class SessionWriter {
 public:
  /// Sends the queued frames of the Session with this id once its socket has room. Any thread.
  virtual void write_when_ready(std::uint64_t session) = 0;

 protected:
  ~SessionWriter() = default;
};

class SessionSocket {
 public:
  /// `incarnation` is ours, in each frame. `writer` outlives the object.
  SessionSocket(std::uint64_t session, base::Fd socket, std::uint64_t incarnation,
                SessionWriter& writer);

  int fd() const noexcept { return fd_; }  ///< A loan, for waiting.
  bool is_remote() const noexcept { return remote_; }
  /// Queues a frame and sends what the socket accepts; `writer` sends the rest. If it throws, it
  /// has queued nothing. no_resource: too much is queued.
  Status send(FrameOp op, std::uint64_t id, std::span<const std::byte> payload,
              std::span<base::Fd> fds) LINKSPAN_EXCLUDES(mutex_);
  /// Queues as send(), but does not request that the rest is sent.
  Status queue(FrameOp op, std::uint64_t id, std::span<const std::byte> payload,
               std::span<base::Fd> fds) LINKSPAN_EXCLUDES(mutex_);
  /// Sends a `collect`, or leaves it to the flush that makes room for it.
  void request_collection() noexcept LINKSPAN_EXCLUDES(mutex_);
  bool wants_write() LINKSPAN_EXCLUDES(mutex_);
  Status flush() LINKSPAN_EXCLUDES(mutex_);  ///< As FdChannel::flush().
  /// Shows the peer end-of-file. Keeps the fd number.
  void shut_down() noexcept { ::shutdown(fd_, SHUT_RDWR); }
  /// Invokes `use` with the channel, under the mutex.
  template <class Use>
  auto with_channel(const Use& use) LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    return std::invoke(use, channel_);
  }

 private:
  base::FrameHeader header_of(FrameOp op, std::uint64_t id) const noexcept;
  void arm_write() noexcept LINKSPAN_EXCLUDES(mutex_);
  Status flush_queued() noexcept LINKSPAN_REQUIRES(mutex_);

  const std::uint64_t session_, incarnation_;
  SessionWriter& writer_;
  const bool remote_;
  const int fd_;
  base::Mutex mutex_;
  base::FdChannel channel_ LINKSPAN_GUARDED_BY(mutex_);
  bool collect_owed_ LINKSPAN_GUARDED_BY(mutex_) = false;  // it had no room in channel_
};

}  // namespace linkspan::control
