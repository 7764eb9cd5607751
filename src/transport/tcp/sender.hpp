// transport/tcp/sender.hpp - the half of a connection that sends: what was said, and chunks of
// batches.
//
// Host memory goes from where it is. Memory of a GPU is copied to staging slots first, some chunks
// ahead of the one that the socket takes.
// Threads: any thread; of a GPU's memory its connection's thread alone.
// Invariants: frames go whole, one behind the other; of a chunk that was taken as many bytes go as
// its head says, zeros if they cannot be had. Host memory is read by calls that answer EFAULT: its
// owner may have freed it. What is sealed, summed or encrypted is a copy, made so, and nobody can
// write to it between its seal and its way.
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

/// A frame on its way through a Sender.
struct SentFrame {
  std::optional<Chunk> chunk;             // none: it was said
  std::vector<std::byte> head;            // behind frames that were said,
  std::vector<std::byte> trailing;        // or those are behind its data, which is small
  copy::StagingBuffer* buffer = nullptr;  // null: not staged
  bool staged = false;                    // the GPU is done, or it was not asked
  Status status{};                        // of the staging
  bool copied = false;                    // its data lies in the Sender's own memory
  std::vector<iovec> parts;               // what is left to be sent,
  std::size_t part = 0;                   // from here on;
  std::size_t data_end = 0;               // parts from 1 to here are its data
  base::MacTag seal{};
};

class Sender {
 public:
  /// `socket` and `tls`, which may be null, are loans; `wire` and `lanes` outlive it.
  Sender(ConnectionGroup& group, int socket, base::TlsEnd* tls,
         copy::StagingStreams& staging_streams, unsigned ctas)
      : group_(group),
        socket_(socket),
        tls_(tls),
        ctas_(ctas),
        staging_(kMaxChunk, staging_streams) {}
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  ~Sender() = default;  ///< Requires: stop() is true, or no GPU was asked.

  /// Each frame is followed by its seal. Before the first one.
  void seal(const base::MacKey& key) LINKSPAN_EXCLUDES(sending_) {
    const base::MutexLock lock(sending_);
    sealer_.emplace(key);
  }

  void enqueue(std::vector<std::byte> frame) LINKSPAN_EXCLUDES(mutex_) {
    enqueue(std::move(frame), 1);
  }
  /// One that waits goes with the next frame, if one comes soon.
  void answer(std::vector<std::byte> frame, bool waits) LINKSPAN_EXCLUDES(sending_, mutex_);
  void on_writable() noexcept { writable_ = true; }  ///< As epoll tells.
  /// True: something has moved. disconnected: the socket takes no more.
  Result<bool> poll() LINKSPAN_EXCLUDES(sending_, mutex_);
  /// The same for who has something small to send now, if nothing is on its way. False: there may
  /// be something left for its connection's thread.
  Result<bool> send_now() LINKSPAN_EXCLUDES(sending_, mutex_);
  /// The other side has asked for more answers than an honest one lets wait: it is to read some.
  bool is_full() LINKSPAN_EXCLUDES(mutex_);
  /// It has nothing to send.
  bool is_idle() const noexcept { return idle_; }
  /// A GPU copies for it, or an answer waits: nobody will wake its thread. What the GPU is done
  /// with waits for the socket, which does.
  bool needs_polling() LINKSPAN_EXCLUDES(sending_) {
    const base::MutexLock lock(sending_);
    return !waiting_.empty() || !std::ranges::all_of(staged_, &SentFrame::staged);
  }
  /// Lets go of memory that the peer may not read any more: zeros go in its place, and the batch
  /// ends with an error. A GPU's copy that is under way ends first.
  void release_revoked() LINKSPAN_EXCLUDES(sending_);
  /// Sends nothing more, once its wire has failed. True: no GPU copies for it.
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
  Status seal(SentFrame& frame) LINKSPAN_REQUIRES(sending_);
  static void send_zeros(SentFrame& frame);
  void finish(SentFrame& frame) LINKSPAN_REQUIRES(sending_);

  ConnectionGroup& group_;
  const int socket_;
  base::TlsEnd* const tls_;
  const unsigned ctas_;
  std::atomic<bool> writable_{true}, idle_{true};
  base::Mutex sending_;  // before mutex_
  copy::Staging staging_ LINKSPAN_GUARDED_BY(sending_);
  std::deque<SentFrame> staged_ LINKSPAN_GUARDED_BY(sending_);
  std::optional<SentFrame> current_ LINKSPAN_GUARDED_BY(sending_);
  std::vector<copy::Staging::StagedRun> runs_ LINKSPAN_GUARDED_BY(sending_);
  std::vector<copy::Piece> pieces_ LINKSPAN_GUARDED_BY(sending_);  // of one copy
  std::optional<base::FrameAuthenticator> sealer_ LINKSPAN_GUARDED_BY(sending_);
  // The current frame's data, where it is copied; answers, whole frames.
  std::vector<std::byte> copy_ LINKSPAN_GUARDED_BY(sending_), waiting_
      LINKSPAN_GUARDED_BY(sending_);
  std::size_t waiting_frames_ LINKSPAN_GUARDED_BY(sending_) = 0;
  base::Time waits_until_ LINKSPAN_GUARDED_BY(sending_){};
  bool was_staged_ LINKSPAN_GUARDED_BY(sending_) = false;  // the chunk before
  base::Mutex mutex_;
  std::deque<QueuedFrames> queued_ LINKSPAN_GUARDED_BY(mutex_);
  std::size_t queued_frames_ LINKSPAN_GUARDED_BY(mutex_) = 0;
};

/// Another part; the last one grows in its place if the bytes lie behind it and it is none of the
/// first `from`. So what lies in a slot is one part, of however many pages.
void append(std::vector<iovec>& parts, std::size_t from, void* at, std::size_t bytes);
/// Cuts what was moved off the front. True: nothing is left.
bool advance(std::vector<iovec>& parts, std::size_t& part, std::size_t bytes) noexcept;

}  // namespace linkspan::transport::tcp
