// transport/tcp/connection_group.hpp - all data connections to one peer, and the batches whose
// bytes they carry.
//
// On the path of a byte: between the Endpoint, which submits batches, and the connections, which
// send and receive frames. A batch is cut into chunks. Each connection takes the next chunk when
// its socket has room, so a slow connection takes fewer. Each frame of a put names its place in the
// peer's region, each frame of a get's data its place in the batch, so frames may arrive in any
// order. The receiver counts the bytes; a batch is complete when as many have arrived as its last
// frame announced. Batches that begin before the first connection exists wait for it.
// Threads: any thread; one mutex, held briefly.
// Invariants: a BatchResult ends once, when no connection of this side touches the batch's memory
// any more and, for a put, the peer has said the same. A failed group carries nothing and is closed
// when its connections are.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/mutex.hpp"
#include "transport/channel.hpp"
#include "transport/tcp/data_connection_count.hpp"
#include "transport/tcp/frame.hpp"
#include "transport/wire_region.hpp"

namespace linkspan::copy {
class Staging;
}  // namespace linkspan::copy

namespace linkspan::transport::tcp {

class DataConnection;

/// Holds how a batch of this side has ended.
struct BatchResult {
  std::atomic<bool> ended{false};
  Status status{};  ///< Valid once `ended` is true.
};

/// Describes a range that is contiguous on both sides.
struct Extent {
  std::uint64_t here = 0;   ///< Address here.
  std::uint64_t there = 0;  ///< put: offset in the peer's region.
  std::uint64_t bytes = 0;
};

/// Records the progress of a peer's transfer on a region of this side.
struct PeersProgress {
  std::atomic<std::uint64_t> bytes{
      0};  ///< Bytes that have come or gone; data connections count them.
  /// Set when the transfer loses its right to the memory. Data connections that still touch it let
  /// go at their next poll.
  std::atomic<bool> revoked{false};

  // Used by the ConnectionGroup alone.
  std::uint64_t seen = 0;                     // value of `bytes` at the last check
  base::Time since{};                         // time since which `bytes` has not changed
  std::optional<base::Time> retracted_since;  // when the region was found retracted
  bool late = false;                          // over its bounds since the retraction
};

/// Describes bytes that leave this side: a put of ours, or the data of the peer's get.
struct Outgoing {
  FrameType type = FrameType::put;
  std::uint64_t id = 0;
  RegionUse use;
  std::vector<Extent> extents;
  std::uint64_t serial = 0;               ///< put
  Token token{};                          ///< put
  BatchResult result{};                   ///< put
  std::vector<std::byte> notification{};  ///< put of one chunk.
  std::uint64_t after = 0;                ///< put of one chunk: as Head::after.
  bool summed = false;                    ///< Its frames carry checksums.
  PeersProgress progress{};               ///< data: the peer's progress.

  // Used by the ConnectionGroup alone.
  std::size_t next = 0;  // index of the next extent
  std::uint64_t within = 0, assigned = 0;
  unsigned reading = 0;  // chunks that connections are sending
  bool canceled = false, all_assigned = false;
  bool ended_by_peer = false;  // put: the peer has reported its end
  Status status{};
};

/// Describes bytes that come to this side: a put of the peer's, or the data of our get.
struct Incoming {
  FrameType type = FrameType::put;
  std::uint64_t id = 0;
  RegionUse use;                ///< Empty: refused; its bytes are discarded.
  std::uint64_t serial = 0;     ///< put
  std::vector<Extent> extents;  ///< get: `there` is the position in the batch.
  std::uint64_t requested = 0;  ///< get
  bool summed = false;          ///< get: its data must carry checksums.
  BatchResult result{};         ///< get
  PeersProgress progress{};     ///< put

  // Used by the ConnectionGroup alone.
  const DataConnection* requested_on =
      nullptr;  // get: the connection that sent the request; only compared, never dereferenced
  std::uint64_t arrived = 0,
                announced = 0;  // arrived; announced by frames whose data may be on its way
  std::optional<std::uint64_t> total;
  bool canceled = false;
  bool refused = false;  // put, by its first frame
  Status status{};       // the first failure; after a GPU's failure later data still lands
  std::vector<std::byte> notification{};  // put
  std::uint64_t after = 0;                // put: as Head::after
};

/// Describes what a connection sends as one frame.
struct Chunk {
  std::shared_ptr<Outgoing> of;  // also the ConnectionGroup's
  RegionUse use{};               // data: keeps the memory, as the batch's own use may end earlier
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

/// Describes a frame that answers the peer.
struct Answer {
  Head head;
  bool waits = false;  ///< It may wait briefly for company: our user was notified at the same time
                       ///< and may send something.
};

struct ConnectionGroupOptions {
  WireRegionTable* published = nullptr;     ///< Outlives the group.
  Channel* channel = nullptr;               ///< Valid until the group has failed.
  std::uint64_t incarnation = 0, peer = 0;  ///< Incarnations of our Engine and of the peer's.
  std::uint64_t chunk = kMaxChunk;          ///< Data bytes of a frame, at most.
  std::size_t inflight =
      64;  ///< Batches of the peer's at once in each direction; a peer that exceeds it is dropped.
  /// Connections that this side has requested, and may request. 0 if the other side makes them.
  unsigned connections = 0, max_connections = 0;
};

class ConnectionGroup {
 public:
  /// Bound a peer's transfers: time without progress of a put, the same on a retracted region, and
  /// the total time after the retraction.
  static constexpr Duration kMaxStall = std::chrono::seconds(60),
                            kMaxStallRetracted = std::chrono::seconds(10),
                            kMaxRetracted = std::chrono::seconds(30);

  explicit ConnectionGroup(const ConnectionGroupOptions& options)
      : options_(options),
        count_(options.connections, options.max_connections),
        may_grow_(count_.may_grow()) {}
  ConnectionGroup(const ConnectionGroup&) = delete;
  ConnectionGroup& operator=(const ConnectionGroup&) = delete;
  ~ConnectionGroup() = default;  ///< Requires: is_closed(), or no connections.

  // Called by the Endpoint.
  void put(std::shared_ptr<Outgoing> batch) LINKSPAN_EXCLUDES(mutex_);
  /// Starts a get. `question` names the region and has spans of as many bytes as the extents.
  void get(std::shared_ptr<Incoming> batch, Head question) LINKSPAN_EXCLUDES(mutex_);
  void cancel(FrameType type, std::uint64_t id) LINKSPAN_EXCLUDES(mutex_);
  /// Adds a connection. Returns failure() if the group has failed.
  Status add(const std::shared_ptr<DataConnection>& connection) LINKSPAN_EXCLUDES(mutex_);
  /// Records that a requested connection cannot be had; the group goes on with fewer.
  void on_connection_refused() LINKSPAN_EXCLUDES(mutex_);
  /// Fails the group and ends all its batches with `why`; does nothing if it has failed before.
  void fail(const Status& why) LINKSPAN_EXCLUDES(mutex_);
  std::optional<Status> failure() const LINKSPAN_EXCLUDES(mutex_);
  bool has_failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  bool is_closed() const LINKSPAN_EXCLUDES(mutex_);  ///< Has failed and touches no memory any more.
  /// Returns true if a put of ours had not ended at the peer when the group failed.
  bool abandons() const LINKSPAN_EXCLUDES(mutex_);
  /// Returns a number that grows while bytes go to the peer's kernel or come from the peer.
  std::uint64_t traffic() const LINKSPAN_EXCLUDES(mutex_);
  /// Makes data that has landed visible to the caller, and what the caller did before visible to
  /// later sends. Returns false if the group has failed.
  bool sync() const LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    return !failure_;
  }
  bool serves() const LINKSPAN_EXCLUDES(mutex_);  ///< A transfer of the peer's is in flight.
  /// Ends peer transfers that make no progress, or outlive the retraction of their region
  /// (kMaxStall, kMaxStallRetracted, kMaxRetracted). The error is reported once the peer has sent
  /// the last frame; memory is released at once.
  void end_stalled(base::Time now) LINKSPAN_EXCLUDES(mutex_);
  /// Returns a number that grows when end_stalled() has ended something; data connections then let
  /// go of its memory.
  std::uint64_t revocations() const noexcept { return revocations_; }
  /// Lists the peer's transfers as Endpoint::served() does. `now` is of the same clock as
  /// end_stalled().
  std::vector<Served> served(base::Time now) const LINKSPAN_EXCLUDES(mutex_);
  std::uint64_t chunk() const noexcept {
    return options_.chunk;
  }  ///< Data bytes of a frame, at most.

  // Called by the connections.
  /// Returns the next chunk of host memory, or one without memory.
  std::optional<Chunk> next_chunk() LINKSPAN_EXCLUDES(mutex_) { return next_chunk(nullptr); }
  /// Returns the next chunk of a GPU's memory for which `staging` has a free buffer.
  std::optional<Chunk> next_chunk(const copy::Staging* staging) LINKSPAN_EXCLUDES(mutex_);
  /// Records that the chunk's memory is no longer read. On an error other bytes were sent in its
  /// place.
  void sent(const Chunk& chunk, const Status& status) LINKSPAN_EXCLUDES(mutex_);
  /// Returns where the data of a put or data frame goes, and moves its notification out. On
  /// `corrupt` the caller fails the group.
  Result<FrameDestination> resolve_destination(Head& head) LINKSPAN_EXCLUDES(mutex_);
  /// Counts bytes that have landed or were discarded. Returns the answer for the peer if the batch
  /// is complete.
  std::optional<Answer> data_landed(Incoming& batch, std::uint64_t bytes, const Status& status)
      LINKSPAN_EXCLUDES(mutex_);
  /// Handles a frame of another type. On `corrupt` the caller fails the group.
  Status on_frame(const Head& head) LINKSPAN_EXCLUDES(mutex_);
  /// Requests more connections if the measured rate justifies them (data_connection_count.hpp).
  /// Called after bytes have moved.
  void check_rate() LINKSPAN_EXCLUDES(mutex_);
  /// Removes a connection that touches no memory any more.
  void on_connection_closed(const DataConnection& connection) LINKSPAN_EXCLUDES(mutex_);

 private:
  Result<std::shared_ptr<Incoming>> find_or_create_put(const Head& head) LINKSPAN_REQUIRES(mutex_);
  Status on_get_request(const Head& head) LINKSPAN_REQUIRES(mutex_);
  bool fill_chunk(Outgoing& batch, Chunk& chunk) const LINKSPAN_REQUIRES(mutex_);
  Head make_head(const Chunk& chunk) const LINKSPAN_REQUIRES(mutex_);
  void end_if_finished(std::uint64_t id) LINKSPAN_REQUIRES(mutex_);
  std::shared_ptr<DataConnection> find_idle() const LINKSPAN_REQUIRES(mutex_);
  std::shared_ptr<DataConnection> enqueue(const Head& head,
                                          const DataConnection* preferred = nullptr)
      LINKSPAN_REQUIRES(mutex_);
  void cancel_unsent(std::uint64_t id) LINKSPAN_REQUIRES(mutex_);
  void wake_some() LINKSPAN_REQUIRES(mutex_);
  void finish_batches() LINKSPAN_REQUIRES(mutex_);
  void on_batch_begun() LINKSPAN_REQUIRES(mutex_);
  static Status stall_status(PeersProgress& progress, const WireRegion& memory, bool bounded,
                             base::Time now);
  std::uint64_t moved() const LINKSPAN_REQUIRES(mutex_);
  static void end(BatchResult& result, const Status& status);

  // Few at a time, found by number; shared with the connections.
  template <class Batch>
  using Batches = std::vector<std::shared_ptr<Batch>>;
  /// Returns null if no batch has that number.
  template <class Batch>
  static Batch* find(const Batches<Batch>& all, std::uint64_t id) {
    const auto found = std::ranges::find(all, id, &Batch::id);
    return found != all.end() ? found->get() : nullptr;
  }
  template <class Batch>
  static void erase(Batches<Batch>& all, std::uint64_t id) {
    std::erase_if(all, [&](const auto& batch) { return batch->id == id; });
  }

  const ConnectionGroupOptions options_;
  mutable base::Mutex mutex_;
  std::deque<std::shared_ptr<Outgoing>> queue_
      LINKSPAN_GUARDED_BY(mutex_);  // not wholly assigned to connections
  // puts until the peer has reported `ended`, answers until they are sent
  Batches<Outgoing> puts_ LINKSPAN_GUARDED_BY(mutex_), answers_ LINKSPAN_GUARDED_BY(mutex_);
  Batches<Incoming> gets_ LINKSPAN_GUARDED_BY(mutex_), peer_puts_ LINKSPAN_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<DataConnection>> connections_
      LINKSPAN_GUARDED_BY(mutex_);  // shared with their threads
  struct PendingFrame {
    std::uint64_t id;
    std::vector<std::byte> frame;
  };
  std::vector<PendingFrame> pending_frames_
      LINKSPAN_GUARDED_BY(mutex_);  // requests made before the first connection
  std::size_t next_data_connection_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  std::optional<Status> failure_ LINKSPAN_GUARDED_BY(mutex_);
  bool abandons_ LINKSPAN_GUARDED_BY(mutex_) = false;
  std::atomic<bool> failed_{false};
  std::atomic<std::uint64_t> revocations_{0};
  DataConnectionCount count_ LINKSPAN_GUARDED_BY(mutex_);
  std::atomic<bool> may_grow_;  // as count_ says; read without the mutex
};

}  // namespace linkspan::transport::tcp
