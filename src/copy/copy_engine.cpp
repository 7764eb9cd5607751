// GpuCopier's copies by the copy engines.
#include <algorithm>

#include "copy/gpu_copier.hpp"

namespace linkspan::copy {

GpuCopier::Queued GpuCopier::queue_copies(const cuda::DeviceScope& scope, const Lane& lane,
                                          Link link, std::span<const Piece> pieces) {
  const std::uint64_t most = copy_bytes(link);
  Queued queued;
  for (const Piece& piece : pieces) {
    for (std::uint64_t done = 0; done < piece.bytes;) {
      const std::uint64_t bytes = std::min(piece.bytes - done, most);
      queued.status = lane.stream.copy(scope, piece.to + done, piece.from + done, bytes);
      if (!queued.status.ok()) return queued;
      ++queued.entries;
      done += bytes;
    }
  }
  return queued;
}

}  // namespace linkspan::copy
