#include "copy/cpu_job.hpp"

#include <algorithm>
#include <cstring>

#include "copy/pageable.hpp"

namespace linkspan::copy {

/// Cuts pieces into chunks that are as full as possible: a staging buffer has room for one chunk.
void CpuCopier::Job::cut(std::span<const Piece> whole, std::uint64_t chunk_bytes) {
  pieces.clear();
  chunks.clear();
  const bool staged = method == Method::pageable;
  const std::size_t most = staged ? Staging::kRuns : kChunkPieces;
  std::uint64_t filled = 0;
  std::size_t runs = 0;
  for (const Piece& piece : whole) {
    for (std::uint64_t cut = 0; cut < piece.bytes;) {
      Piece part{.to = piece.to + cut, .from = piece.from + cut, .bytes = 0};
      const bool joined =
          staged && filled != 0 && PageableCopies::joins(pieces.back(), part, to_gpu);
      if (filled == chunk_bytes || (runs == most && !joined)) {
        chunks.push_back(pieces.size());
        filled = runs = 0;
      }
      if (filled == 0 || !joined) ++runs;
      part.bytes = std::min(piece.bytes - cut, chunk_bytes - filled);
      pieces.push_back(part);
      filled += part.bytes;
      cut += part.bytes;
    }
  }
  if (filled != 0) chunks.push_back(pieces.size());
}

Status CpuCopier::Job::copy(std::size_t i) const {
  if (method == Method::cross_process) return copy_across(other, remote_is_source, chunk(i));
  if (guarded) return copy_within(chunk(i));
  for (const Piece& piece : chunk(i))
    std::memcpy(reinterpret_cast<void*>(piece.to),          // NOLINT(performance-no-int-to-ptr)
                reinterpret_cast<const void*>(piece.from),  // NOLINT(performance-no-int-to-ptr)
                piece.bytes);
  return {};
}

}  // namespace linkspan::copy
