// transport/tcp/chunk_staging.hpp - chunks of GPU memory that go to a socket.
//
// On the path of a byte: takes chunks from the ConnectionGroup and has GPUs copy them to staging
// buffers, some ahead of the socket.
// Threads: under Sender::sending_; submit() and poll() the connection's thread.
#pragma once

#include <algorithm>
#include <deque>
#include <vector>

#include "copy/staging.hpp"
#include "transport/tcp/connection_group.hpp"
#include "transport/tcp/sent_frame.hpp"

namespace linkspan::transport::tcp {

class ChunkStaging {
 public:
  /// `streams` outlives it.
  ChunkStaging(copy::StagingStreams& streams, unsigned ctas)
      : staging_(kMaxChunk, streams), ctas_(ctas) {}

  /// Returns whether a chunk of that GPU's may be staged. Of a batch that connections share, each
  /// stages one chunk at a time, or the first would take most; null: of another.
  bool room(const cuda::Device& device, const Outgoing* shared) const noexcept;
  /// Submits GPU copies while staging buffers are free. Returns true if there were chunks.
  bool submit(ConnectionGroup& group);
  /// Records which copies have finished. Returns true if any has.
  bool poll();

  bool empty() const noexcept { return frames_.empty(); }
  bool has_staged() const noexcept {
    return std::ranges::find(frames_, true, &SentFrame::staged) != frames_.end();
  }
  /// Returns true while a GPU copies.
  bool is_copying() const noexcept { return !std::ranges::all_of(frames_, &SentFrame::staged); }
  SentFrame pop_staged();  ///< Requires: has_staged(). The buffer is the frame's until release().
  void release(const SentFrame& frame) noexcept;
  /// Drops all that no GPU copies. Returns true if nothing is left.
  bool stop();

 private:
  copy::Staging staging_;
  const unsigned ctas_;
  std::deque<SentFrame> frames_;
  std::vector<copy::Staging::StagedRun> runs_;  // of one copy
};

}  // namespace linkspan::transport::tcp
