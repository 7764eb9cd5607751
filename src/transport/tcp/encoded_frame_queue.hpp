// transport/tcp/encoded_frame_queue.hpp - encoded frames that wait for a Sender.
//
// Threads: any thread.
// Invariants: frames leave whole and in their order.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <vector>

#include "base/mutex.hpp"

namespace linkspan::transport::tcp {

/// Holds encoded frames, one after the other.
struct EncodedFrames {
  std::vector<std::byte> bytes;
  std::size_t frames = 0;
};

class EncodedFrameQueue {
 public:
  static constexpr std::size_t kMaxFrames =
      1024;  ///< More than one answer for each batch in flight.

  void push(EncodedFrames frames) LINKSPAN_EXCLUDES(mutex_);
  /// Removes the frames that one call sends; `one`: what was pushed at once.
  std::vector<std::byte> pop(bool one) LINKSPAN_EXCLUDES(mutex_);
  /// Returns true if the peer has requested more answers than it reads.
  bool is_full() const LINKSPAN_EXCLUDES(mutex_);
  /// Returns true if the Sender has nothing to send.
  bool is_idle() const noexcept { return idle_; }
  /// Records that the Sender has something to send.
  void set_busy() noexcept { idle_ = false; }
  /// Records that the Sender has nothing else to send, or is not `idle`.
  void set_idle_if_empty(bool idle) LINKSPAN_EXCLUDES(mutex_);

 private:
  std::atomic<bool> idle_{true};
  mutable base::Mutex mutex_;
  std::deque<EncodedFrames> queued_ LINKSPAN_GUARDED_BY(mutex_);
  std::size_t frames_ LINKSPAN_GUARDED_BY(mutex_) = 0;
};

}  // namespace linkspan::transport::tcp
