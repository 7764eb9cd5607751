// GpuCopier's copies by the copy engines.
#include <algorithm>

#include "copy/gpu_copier.hpp"

namespace linkspan::copy {

GpuCopier::SubmitResult GpuCopier::queue_copies(const cuda::DeviceScope& scope, CopyQueue& queue,
                                                const Order& order,
                                                Relay::RelayStreams* relay_streams) {
  const std::uint64_t most = copy_bytes(order.link);
  const unsigned before = relay_streams != nullptr ? relay_streams->in_flight() : 0;
  SubmitResult queued;
  const auto copy = [&](const Piece& piece, std::uint64_t done, std::uint64_t end) {
    while (done < end && queued.status.ok()) {
      const std::uint64_t bytes = std::min(end - done, most);
      queued.status = queue.stream.copy(scope, piece.to + done, piece.from + done, bytes);
      if (queued.status.ok()) ++queued.entries;
      done += bytes;
    }
  };
  for (const Piece& piece : order.pieces) {
    const std::uint64_t share = relay_streams != nullptr ? (*relay_)->share(piece.bytes) : 0;
    std::uint64_t done = piece.bytes - share;
    copy(piece, 0, done);
    if (share != 0 && queued.status.ok()) {
      const std::uint64_t accepted =
          (*relay_)->queue(scope, *relay_streams, {piece.to + done, piece.from + done, share});
      queued.relayed += accepted;
      done += accepted;
    }
    copy(piece, done, piece.bytes);
    if (!queued.status.ok()) break;
  }
  if (relay_streams != nullptr && queued.relayed != 0) {
    queued.chunks = relay_streams->in_flight() - before;
    const Status joined = (*relay_)->join(scope, *relay_streams, queue.stream);
    queued.joined = joined.ok();
    if (!joined.ok()) queued.status = joined;
  }
  return queued;
}

}  // namespace linkspan::copy
