// GpuCopier's copies by the copy engines.
#include <algorithm>

#include "copy/gpu_copier.hpp"

namespace linkspan::copy {

GpuCopier::Queued GpuCopier::queue_copies(const cuda::DeviceScope& scope, Lane& lane,
                                          const Order& order, Relay::Way* way) {
  const std::uint64_t most = copy_bytes(order.link);
  const unsigned before = way != nullptr ? way->in_flight() : 0;
  Queued queued;
  const auto copy = [&](const Piece& piece, std::uint64_t done, std::uint64_t end) {
    while (done < end && queued.status.ok()) {
      const std::uint64_t bytes = std::min(end - done, most);
      queued.status = lane.stream.copy(scope, piece.to + done, piece.from + done, bytes);
      if (queued.status.ok()) ++queued.entries;
      done += bytes;
    }
  };
  for (const Piece& piece : order.pieces) {
    const std::uint64_t lent = way != nullptr ? relay_->share(piece.bytes) : 0;
    std::uint64_t done = piece.bytes - lent;
    copy(piece, 0, done);
    if (lent != 0 && queued.status.ok()) {
      const std::uint64_t taken =
          relay_->queue(scope, *way, {piece.to + done, piece.from + done, lent});
      queued.relayed += taken;
      done += taken;
    }
    copy(piece, done, piece.bytes);
    if (!queued.status.ok()) break;
  }
  if (way != nullptr && queued.relayed != 0) {
    queued.chunks = way->in_flight() - before;
    const Status joined = relay_->join(scope, *way, lane.stream);
    queued.joined = joined.ok();
    if (!joined.ok()) queued.status = joined;
  }
  return queued;
}

}  // namespace linkspan::copy
