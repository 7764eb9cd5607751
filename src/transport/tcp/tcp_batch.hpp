// transport/tcp/tcp_batch.hpp - batches whose bytes data connections carry, and the chunks that
// they are cut into.
//
// On the path of a byte: names its place here and at the peer, from post() to the socket.
// Threads: under the mutex of the ConnectionGroup, except as marked.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "linkspan/status.hpp"
#include "transport/tcp/frame.hpp"
#include "transport/wire_region.hpp"

namespace linkspan::transport::tcp {

class DataConnection;

/// Holds how a batch of this side has ended. Any thread.
struct BatchResult {
  void end(const Status& with) {
    status = with;
    ended.store(true, std::memory_order_release);
  }

  std::atomic<bool> ended{false};
  Status status{};  ///< Valid once `ended` is true.
};

/// Describes a range that is contiguous on both sides.
struct Extent {
  std::uint64_t here = 0;   ///< Address here.
  std::uint64_t there = 0;  ///< put: offset in the peer's region. get: position in the batch.
  std::uint64_t bytes = 0;
};

inline std::uint64_t bytes_of(const std::vector<Extent>& extents) {
  std::uint64_t bytes = 0;
  for (const Extent& extent : extents) bytes += extent.bytes;
  return bytes;
}

/// Records the progress of a peer's transfer on a region of this side.
struct PeersProgress {
  /// Bytes that have come or gone; data connections count them.
  std::atomic<std::uint64_t> bytes{0};
  /// Set when the transfer loses its right to the memory. Data connections that still touch it let
  /// go at their next poll.
  std::atomic<bool> revoked{false};

  // Used by ServedTransfers alone.
  std::uint64_t seen = 0;                     // value of `bytes` at the last check
  base::Time since{};                         // time since which `bytes` has not changed
  std::optional<base::Time> retracted_since;  // when the region was found retracted
  bool late = false;                          // over its bounds since the retraction
};

/// Describes bytes that go between the sides, in either direction.
struct TcpBatch {
  FrameType type = FrameType::put;
  std::uint64_t id = 0;
  RegionUse use{};  ///< Empty: refused, or the memory is no longer needed.
  std::vector<Extent> extents{};
  std::uint64_t serial = 0;               ///< put: of the peer's region, or of ours.
  bool summed = false;                    ///< Frames with data must carry checksums.
  BatchResult result{};                   ///< put, get of this side.
  PeersProgress progress{};               ///< put of the peer's, data: the peer's progress.
  std::vector<std::byte> notification{};  ///< put.
  std::uint64_t after = 0;                ///< put: as Head::after.

  bool canceled = false;
  Status status{};  // the first failure; after a GPU's failure later data still lands
};

/// Describes bytes that leave this side: a put of ours, or the data of the peer's get.
struct Outgoing : TcpBatch {
  Token token{};                  ///< put
  std::uint64_t bytes = 0;        ///< Of all extents.
  std::uint64_t frame_bytes = 0;  ///< Data of a frame, at most.
  bool shared = false;            ///< Cut into smaller frames than it had to be.

  std::size_t next = 0;      // index of the next extent
  std::uint64_t within = 0;  // bytes of it that are assigned
  std::uint64_t assigned = 0;
  unsigned reading = 0;  // chunks that connections are sending
  bool all_assigned = false;
  bool ended_by_peer = false;  // put: the peer has reported its end
};

/// Describes bytes that come to this side: a put of the peer's, or the data of our get.
struct Incoming : TcpBatch {
  std::uint64_t requested = 0;  ///< get

  /// get: the connection that sent the request; only compared, never dereferenced.
  const DataConnection* requested_on = nullptr;
  std::uint64_t arrived = 0;
  std::uint64_t announced = 0;  // by frames whose data may be on its way
  std::optional<std::uint64_t> total{};
  bool landed = false;   // all of it; a last frame without data is counted behind the others' data
  bool refused = false;  // put, by its first frame
};

/// Lists batches, few at a time and found by number; shared with the connections.
template <class Batch>
using Batches = std::vector<std::shared_ptr<Batch>>;
/// Returns null if no batch has that number.
template <class Batch>
Batch* find(const Batches<Batch>& all, std::uint64_t id) {
  const auto found = std::ranges::find(all, id, &Batch::id);
  return found != all.end() ? found->get() : nullptr;
}
template <class Batch>
void erase(Batches<Batch>& all, std::uint64_t id) {
  std::erase_if(all, [&](const auto& batch) { return batch->id == id; });
}

/// Describes what a connection sends as one frame.
struct Chunk {
  std::shared_ptr<Outgoing> of;  // also the ConnectionGroup's
  RegionUse use{};               // data: keeps the memory, as the batch's own use may end earlier
  const cuda::Device* device = nullptr;  // null: host memory, or no bytes
  std::vector<Extent> extents;
  std::uint64_t position = 0, bytes = 0;
  bool last = false;
  Head head{};
};

/// Describes where the data of a frame goes.
struct FrameDestination {
  std::shared_ptr<Incoming> of;  // also the ConnectionGroup's
  RegionUse use{};               ///< put: keeps the memory, as the batch's own use may end earlier.
  std::vector<Extent> extents;   ///< Empty: the data is discarded.
  const cuda::Device* device = nullptr;  ///< Null: host memory.
  std::uint64_t bytes = 0;
};

/// Returns the error of a frame whose checksum does not match what has arrived.
Status wrong_sum(FrameType type);

}  // namespace linkspan::transport::tcp
