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

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/frame_authenticator.hpp"
#include "base/mutex.hpp"
#include "base/tls.hpp"
#include "copy/staging.hpp"
#include "transport/tcp/connection_group.hpp"

namespace linkspan::transport::tcp {

/// Describes a frame on its way through a Sender.
struct SentFrame {
  std::optional<Chunk> chunk;             // none: queued frames alone
  std::vector<std::byte> head;            // queued frames, then the chunk's head
  std::vector<std::byte> trailing;        // answers sent after its data, if that is small
  copy::StagingBuffer* buffer = nullptr;  // null: not staged
  bool staged = false;                    // the GPU is done, or was not used
  Status status{};                        // of the staging
  bool copied = false;                    // its data lies in the Sender's own buffer
  std::vector<iovec> parts;               // what is left to send
  std::size_t part = 0;                   // index of the next part
  std::size_t data_end = 0;               // parts [1, data_end) are its data
  base::MacTag seal{};
};

class Sender {
 public:
  /// Borrows `socket` and `tls`, which may be null. `group` and `staging_streams` outlive it.
  Sender(ConnectionGroup& group, int socket, base::TlsEnd* tls,
         copy::StagingStreams& staging_streams, unsigned ctas)
      : group_(group),
        socket_(socket),
        tls_(tls),
        ctas_(ctas),
        staging_(kMaxChunk, staging_streams) {}
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  ~Sender() = default;  ///< Requires: stop() returned true, or no GPU was used.

  /// Appends a seal to each frame from now on. Called before the first frame.
  void seal(const base::MacKey& key) LINKSPAN_EXCLUDES(sending_) {
    const base::MutexLock lock(sending_);
    sealer_.emplace(key);
  }

  void enqueue(std::vector<std::byte> frame) LINKSPAN_EXCLUDES(mutex_) {
    enqueue(std::move(frame), 1);
  }
  /// Queues an answer. One that `waits` goes with the next frame, if one comes soon.
  void answer(std::vector<std::byte> frame, bool waits) LINKSPAN_EXCLUDES(sending_, mutex_);
  void on_writable() noexcept { writable_ = true; }  ///< Called on EPOLLOUT.
  /// Sends what it can. Returns true if something has moved. disconnected: the socket takes no
  /// more.
  Result<bool> poll() LINKSPAN_EXCLUDES(sending_, mutex_);
  /// Sends something small from the caller's thread if nothing else is being sent. Returns false if
  /// something may be left for the connection's thread.
  Result<bool> send_now() LINKSPAN_EXCLUDES(sending_, mutex_);
  /// Returns true if the peer has requested more answers than it reads; it must read some first.
  bool is_full() LINKSPAN_EXCLUDES(mutex_);
  /// Has nothing to send.
  bool is_idle() const noexcept { return idle_; }
  /// Returns true while a GPU copies for it or an answer waits, as no event wakes its thread for
  /// these. Data that a GPU has finished waits for the socket, which raises one.
  bool needs_polling() LINKSPAN_EXCLUDES(sending_) {
    const base::MutexLock lock(sending_);
    return !waiting_.empty() || !std::ranges::all_of(staged_, &SentFrame::staged);
  }
  /// Releases memory that the peer may no longer read: zeros are sent in its place and the batch
  /// ends with an error. A GPU copy under way finishes first.
  void release_revoked() LINKSPAN_EXCLUDES(sending_);
  /// Stops sending after the group has failed. Returns true if no GPU copies for it.
  bool stop() LINKSPAN_EXCLUDES(sending_);

 private:
  struct QueuedFrames {
    std::vector<std::byte> bytes;
    std::size_t frames = 0;
  };
  void enqueue(std::vector<std::byte> bytes, std::size_t frames) LINKSPAN_EXCLUDES(mutex_);
  bool stage() LINKSPAN_REQUIRES(sending_);
  bool poll_gpu() LINKSPAN_REQUIRES(sending_);
  Result<bool> send_frames() LINKSPAN_REQUIRES(sending_) LINKSPAN_EXCLUDES(mutex_);
  Result<std::size_t> send(std::span<iovec> parts) LINKSPAN_REQUIRES(sending_);
  Result<bool> next() LINKSPAN_REQUIRES(sending_) LINKSPAN_EXCLUDES(mutex_);
  std::vector<std::byte> pop_queued() LINKSPAN_REQUIRES(sending_) LINKSPAN_EXCLUDES(mutex_);
  void check_memory(SentFrame& frame) LINKSPAN_REQUIRES(sending_);
  void lay_out(SentFrame& frame) LINKSPAN_REQUIRES(sending_);
  void lay_out_data(SentFrame& frame) LINKSPAN_REQUIRES(sending_);
  static void lay_out_zeros(SentFrame& frame, std::uint64_t bytes);
  static bool zero_rest(SentFrame& frame);
  static void zero_data(SentFrame& frame);
  Status seal(SentFrame& frame) LINKSPAN_REQUIRES(sending_);
  void finish(SentFrame& frame) LINKSPAN_REQUIRES(sending_);

  ConnectionGroup& group_;
  const int socket_;
  base::TlsEnd* const tls_;
  const unsigned ctas_;
  std::atomic<bool> writable_{true}, idle_{true};
  base::Mutex sending_;  // locked before mutex_
  copy::Staging staging_ LINKSPAN_GUARDED_BY(sending_);
  std::deque<SentFrame> staged_ LINKSPAN_GUARDED_BY(sending_);
  std::optional<SentFrame> current_ LINKSPAN_GUARDED_BY(sending_);
  std::vector<copy::Staging::StagedRun> runs_ LINKSPAN_GUARDED_BY(sending_);
  std::vector<copy::Piece> pieces_ LINKSPAN_GUARDED_BY(sending_);  // of one copy
  std::optional<base::FrameAuthenticator> sealer_ LINKSPAN_GUARDED_BY(sending_);
  // the current frame's data if it is copied; whole answers that wait
  std::vector<std::byte> copy_ LINKSPAN_GUARDED_BY(sending_), waiting_
      LINKSPAN_GUARDED_BY(sending_);
  std::size_t waiting_frames_ LINKSPAN_GUARDED_BY(sending_) = 0;
  base::Time waits_until_ LINKSPAN_GUARDED_BY(sending_){};
  bool was_staged_ LINKSPAN_GUARDED_BY(sending_) = false;  // the previous chunk was staged
  base::Mutex mutex_;
  std::deque<QueuedFrames> queued_ LINKSPAN_GUARDED_BY(mutex_);
  std::size_t queued_frames_ LINKSPAN_GUARDED_BY(mutex_) = 0;
};

}  // namespace linkspan::transport::tcp
