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

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "transport/channel.hpp"
#include "transport/tcp/connection_set.hpp"
#include "transport/tcp/data_connection_count.hpp"
#include "transport/tcp/frame.hpp"
#include "transport/tcp/served_transfers.hpp"
#include "transport/tcp/tcp_batch.hpp"
#include "transport/wire_region.hpp"

namespace linkspan::transport::tcp {

class ChunkStaging;

/// Describes a frame that answers the peer.
struct Answer {
  Head head;
  bool waits = false;  ///< It may wait briefly for company: our user was notified at the same time
                       ///< and may send something.
};

struct ConnectionGroupOptions {
  WireRegionTable* published = nullptr;  ///< Outlives the group.
  Channel* channel = nullptr;            ///< Valid until the group has failed.
  std::uint64_t incarnation = 0;         ///< Our Engine's.
  std::uint64_t chunk = kMaxChunk;       ///< Data bytes of a frame, at most.
  std::size_t inflight =
      64;  ///< Batches of the peer's at once in each direction; a peer that exceeds it is dropped.
  Duration max_stall{0};  ///< As ServedTransfers takes it.
  /// Connections that this side has requested, and may request. 0 if the other side makes them.
  unsigned connections = 0, max_connections = 0;
};

class ConnectionGroup {
 public:
  explicit ConnectionGroup(const ConnectionGroupOptions& options)
      : options_(options),
        served_(*options.published, options.inflight, options.max_stall),
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
  bool has_failed() const noexcept { return failed_.load(std::memory_order_acquire) != 0; }
  bool is_closed() const LINKSPAN_EXCLUDES(mutex_);  ///< Has failed and touches no memory any more.
  /// Returns true if the group has failed and a put of ours has not ended at the peer.
  bool abandons() const LINKSPAN_EXCLUDES(mutex_);
  /// Returns a number that grows while bytes go to the peer's kernel or come from the peer.
  std::uint64_t traffic() const LINKSPAN_EXCLUDES(mutex_);
  /// Makes data that has landed visible to the caller, and what the caller did before visible to
  /// later sends, as the connections' threads call it where data lands and is read. Returns false
  /// if the group has failed. Takes no lock, because waiting threads call it continuously.
  bool sync() const noexcept { return failed_.fetch_add(0, std::memory_order_acq_rel) == 0; }
  bool serves() const LINKSPAN_EXCLUDES(mutex_);  ///< A transfer of the peer's is in flight.
  /// Ends peer transfers that make no progress, or outlive the retraction of their region
  /// (served_transfers.hpp).
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
  /// Returns the next chunk of a GPU's memory for which `staging` has room.
  std::optional<Chunk> next_chunk(const ChunkStaging* staging) LINKSPAN_EXCLUDES(mutex_);
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
  Status on_get_request(const Head& head) LINKSPAN_REQUIRES(mutex_);
  void end_if_finished(std::uint64_t id) LINKSPAN_REQUIRES(mutex_);
  void cancel_unsent(TcpBatch& batch) LINKSPAN_REQUIRES(mutex_);
  void choose_frame_bytes(Outgoing& batch, std::size_t batches) const LINKSPAN_REQUIRES(mutex_);
  void wake_some() LINKSPAN_REQUIRES(mutex_);
  void finish_batches() LINKSPAN_REQUIRES(mutex_);
  void on_batch_begun() LINKSPAN_REQUIRES(mutex_);

  const ConnectionGroupOptions options_;
  mutable base::Mutex mutex_;
  std::deque<std::shared_ptr<Outgoing>> queue_
      LINKSPAN_GUARDED_BY(mutex_);                      // not wholly assigned to connections
  Batches<Outgoing> puts_ LINKSPAN_GUARDED_BY(mutex_);  // until the peer has reported `ended`
  Batches<Incoming> gets_ LINKSPAN_GUARDED_BY(mutex_);
  ServedTransfers served_ LINKSPAN_GUARDED_BY(mutex_);
  ConnectionSet connections_ LINKSPAN_GUARDED_BY(mutex_);
  std::optional<Status> failure_ LINKSPAN_GUARDED_BY(mutex_);
  mutable std::atomic<unsigned> failed_{0};  // 0 or 1; only read-modify-writes, for sync()
  std::atomic<std::uint64_t> revocations_{0};
  DataConnectionCount count_ LINKSPAN_GUARDED_BY(mutex_);
  std::atomic<bool> may_grow_;  // as count_ says; read without the mutex
};

}  // namespace linkspan::transport::tcp
