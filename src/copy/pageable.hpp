// copy/pageable.hpp - copies between GPUs and pageable host memory, through staging buffers.
//
// Each executor of CpuCopier has one. To a GPU, memcpy packs the pieces of a chunk into a buffer
// that the GPU copies from; from a GPU, the reverse (copy/staging.hpp).
// Threads: one executor's. Only calls of the driver may wait.
// Invariants: those of Staging.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "copy/copier.hpp"
#include "copy/staging.hpp"

namespace linkspan::copy {

class PageableCopies {
 public:
  struct PageableChunk {
    const Order* order = nullptr;     ///< Valid until the chunk has ended, but for its spans.
    std::span<const Piece> pieces{};  ///< Valid until then, too.
    std::size_t cookie = 0;           ///< Returned by end_one().
  };
  struct Ended {
    std::size_t cookie = 0;
    Status status;
  };

  /// Returns whether `piece` continues `before` on the GPU, so that both are one run there.
  static bool joins(const Piece& before, const Piece& piece, bool to_gpu) noexcept {
    return (to_gpu ? before.to : before.from) + before.bytes == (to_gpu ? piece.to : piece.from);
  }

  PageableCopies(std::size_t buffer_bytes, StagingStreams& streams) noexcept
      : staging_(buffer_bytes, streams) {}

  /// Starts a chunk of at most buffer_bytes and Staging::kRuns runs. Requires room(). On error
  /// nothing is in flight.
  Status begin(const PageableChunk& chunk);
  /// Ends a quiet chunk, if there is one. From a GPU: copies its bytes to host memory first.
  std::optional<Ended> end_one();
  const Staging& staging() const noexcept { return staging_; }

 private:
  Status copy(const StagingBuffer& buffer, const PageableChunk& chunk);

  Staging staging_;
  std::array<PageableChunk, Staging::kBuffers> chunks_;  // by buffer index
  std::vector<Staging::StagedRun> runs_;                 // of the chunk that begins
  std::vector<Piece> guarded_;  // between a buffer and host memory, of one chunk
};

}  // namespace linkspan::copy
