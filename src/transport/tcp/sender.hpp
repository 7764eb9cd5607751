// transport/tcp/sender.hpp - the sending half of a data connection: queued frames and chunks of
// batches.
//
// On the path of a byte: takes chunks from the ConnectionGroup and writes them to the socket. Host
// memory is sent from its place. GPU memory is first copied to staging buffers, some chunks ahead
// of the socket.
// Threads: any thread; GPU memory only by the connection's thread.
// Invariants: frames are sent whole and one after the other. A chunk once taken is sent with as
// many bytes as its head announces, zeros if they cannot be read. Host memory is read by calls that
// answer EFAULT, because its owner may have freed it. What is sealed, summed or encrypted is a
// private copy, so it cannot change between its seal and its sending.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/frame_authenticator.hpp"
#include "base/mutex.hpp"
#include "transport/tcp/chunk_staging.hpp"
#include "transport/tcp/connection_group.hpp"
#include "transport/tcp/data_socket.hpp"
#include "transport/tcp/encoded_frame_queue.hpp"
#include "transport/tcp/sent_frame.hpp"

namespace linkspan::transport::tcp {

class Sender {
 public:
  /// `group`, `socket` and `staging_streams` outlive it.
  Sender(ConnectionGroup& group, DataSocket& socket, copy::StagingStreams& staging_streams,
         unsigned ctas)
      : group_(group), socket_(socket), staging_(staging_streams, ctas) {}
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  ~Sender() = default;  ///< Requires: stop() returned true, or no GPU was used.

  /// Appends a seal to each frame from now on. Called before the first frame.
  void seal(const base::MacKey& key) LINKSPAN_EXCLUDES(sending_) {
    const base::MutexLock lock(sending_);
    sealer_.emplace(key);
  }

  void enqueue(std::vector<std::byte> frame) { queue_.push({std::move(frame), 1}); }
  /// Queues an answer. One that `waits` goes with the next frame, if one comes soon.
  void answer(std::vector<std::byte> frame, bool waits) LINKSPAN_EXCLUDES(sending_);
  void on_writable() noexcept { writable_ = true; }  ///< Called on EPOLLOUT.
  /// Sends what it can. Returns true if something has moved. disconnected: the socket takes no
  /// more.
  Result<bool> poll() LINKSPAN_EXCLUDES(sending_);
  /// Sends something small from the caller's thread if nothing else is being sent. Returns false if
  /// something may be left for the connection's thread.
  Result<bool> send_now() LINKSPAN_EXCLUDES(sending_);
  /// Returns true if the peer has requested more answers than it reads; it must read some first.
  bool is_full() const { return queue_.is_full(); }
  bool is_idle() const noexcept { return queue_.is_idle(); }  ///< Has nothing to send.
  /// Returns true while a GPU copies for it or an answer waits, as no event wakes its thread for
  /// these. Data that a GPU has finished waits for the socket, which raises one.
  bool needs_polling() LINKSPAN_EXCLUDES(sending_) {
    const base::MutexLock lock(sending_);
    return waiting_.frames.frames != 0 || staging_.is_copying();
  }
  /// Releases memory that the peer may no longer read: zeros are sent in its place and the batch
  /// ends with an error. A GPU copy under way finishes first.
  void release_revoked() LINKSPAN_EXCLUDES(sending_);
  /// Stops sending after the group has failed. Returns true if no GPU copies for it.
  bool stop() LINKSPAN_EXCLUDES(sending_);

 private:
  /// Holds whole answers that wait for company.
  struct WaitingAnswers {
    EncodedFrames frames;
    base::Time until{};
  };
  Result<bool> send_frames() LINKSPAN_REQUIRES(sending_);
  Result<bool> next() LINKSPAN_REQUIRES(sending_);
  void check_memory(SentFrame& frame) LINKSPAN_REQUIRES(sending_);
  void finish(SentFrame& frame) LINKSPAN_REQUIRES(sending_);

  ConnectionGroup& group_;
  DataSocket& socket_;
  std::atomic<bool> writable_{true};
  EncodedFrameQueue queue_;
  base::Mutex sending_;
  ChunkStaging staging_ LINKSPAN_GUARDED_BY(sending_);
  bool was_staged_ LINKSPAN_GUARDED_BY(sending_) = false;  // the previous chunk was staged
  WaitingAnswers waiting_ LINKSPAN_GUARDED_BY(sending_);
  std::optional<SentFrame> current_ LINKSPAN_GUARDED_BY(sending_);
  std::vector<std::byte> copy_ LINKSPAN_GUARDED_BY(sending_);  // the current frame's copied data
  std::vector<copy::Piece> pieces_ LINKSPAN_GUARDED_BY(sending_);  // of one copy
  std::optional<base::FrameAuthenticator> sealer_ LINKSPAN_GUARDED_BY(sending_);
};

}  // namespace linkspan::transport::tcp
