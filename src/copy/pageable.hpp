// copy/pageable.hpp - copies between GPUs and pageable host memory, through staging buffers.
//
// Each executor of CpuCopier has one of these. memcpy packs the pieces of a chunk into a buffer
// that the GPU then takes them from, or the mirror image (copy/staging.hpp). Threads: of one
// executor. Nothing here waits but the driver's own calls.
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
    const cuda::Device* device = nullptr;  ///< Outlives this.
    std::span<const Piece> pieces{};       ///< Stay until it has ended.
    bool to_gpu = false;
    bool guarded = false;    ///< As Order::guarded.
    unsigned ctas = 0;       ///< As Order::ctas.
    std::size_t cookie = 0;  ///< The caller's.
  };
  struct Ended {
    std::size_t cookie = 0;
    Status status;
  };

  /// The piece goes on on the GPU where the one before it ends: both are one run there.
  static bool joins(const Piece& before, const Piece& piece, bool to_gpu) noexcept {
    return (to_gpu ? before.to : before.from) + before.bytes == (to_gpu ? piece.to : piece.from);
  }

  PageableCopies(std::size_t buffer_bytes, StagingStreams& streams) noexcept
      : staging_(buffer_bytes, streams) {}

  /// At most buffer_bytes and Staging::kRuns of them, and requires room(). An error: nothing is in
  /// flight.
  Status begin(const PageableChunk& chunk);
  /// One that is quiet, if there is any. From a GPU: copies its bytes to where they belong.
  std::optional<Ended> end_one();
  const Staging& staging() const noexcept { return staging_; }

 private:
  Status copy(const StagingBuffer& buffer, const PageableChunk& chunk);

  Staging staging_;
  std::array<PageableChunk, Staging::kBuffers> chunks_;  // by buffers
  std::vector<Staging::StagedRun> runs_;                 // of the chunk that begins
  std::vector<Piece> guarded_;  // between a buffer and host memory, of one chunk
};

}  // namespace linkspan::copy
