// transport/tcp/connection_group.hpp - all connections to one peer, and the batches whose bytes
// they carry.
//
// A batch becomes chunks; each connection takes the next chunk when its socket has room, so that a
// slow one takes fewer. A put names its place in the peer's region in each frame and a get's data
// its place in the batch: frames may arrive in any order. Whoever lets bytes land counts them; all
// have landed when as many have as the frame that was the last to be taken has said.
// What begins before the first connection has come waits for it.
// Threads: any thread; one mutex, which nobody holds for long.
// Invariants: a BatchResult ends once, when no connection of this side reads or writes the batch's
// memory any more, and of a put when the peer has said the same; a wire that has failed carries
// nothing, and is over when its connections are.
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

/// How a batch of ours has ended.
struct BatchResult {
  std::atomic<bool> ended{false};
  Status status{};  ///< Once it has.
};

/// Contiguous on both sides.
struct Extent {
  std::uint64_t here = 0;   ///< An address.
  std::uint64_t there = 0;  ///< An offset in the peer's region, of a put.
  std::uint64_t bytes = 0;
};

/// How far a peer is with what it does on a region of this side.
struct PeersProgress {
  std::atomic<std::uint64_t> bytes{0};  ///< That have come or gone; counted by data connections.
  /// It has no right to the memory any more: data connections that still touch it let go at their
  /// next turn.
  std::atomic<bool> revoked{false};

  // The ConnectionGroup's.
  std::uint64_t seen = 0;                     // of the bytes, when that was looked at,
  base::Time since{};                         // and since when it has been as many
  std::optional<base::Time> retracted_since;  // the region
  bool late = false;                          // since then
};

/// Bytes of this side on their way: a put of ours, or what the peer asked for.
struct Outgoing {
  FrameType type = FrameType::put;
  std::uint64_t id = 0;
  RegionUse use;
  std::vector<Extent> extents;
  std::uint64_t serial = 0;               ///< put
  Token token{};                          ///< put
  BatchResult result{};                   ///< put
  std::vector<std::byte> notification{};  ///< put, of one chunk.
  std::uint64_t after = 0;                ///< The same: as Head::after.
  bool summed = false;                    ///< Its frames have sums.
  PeersProgress progress{};               ///< Of what the peer asked for.

  // The ConnectionGroup's.
  std::size_t next = 0;  // piece
  std::uint64_t within = 0, assigned = 0;
  unsigned reading = 0;  // chunks with connections
  bool canceled = false, all_assigned = false;
  bool ended_by_peer = false;  // of a put that it has ended there
  Status status{};
};

/// Bytes on their way here: a put of the peer's, or what we asked for.
struct Incoming {
  FrameType type = FrameType::put;
  std::uint64_t id = 0;
  RegionUse use;              ///< Of none: refused, what comes is thrown away.
  std::uint64_t serial = 0;     ///< put
  std::vector<Extent> extents;  ///< get; `there` is the position in the batch.
  std::uint64_t requested = 0;  ///< get
  bool summed = false;          ///< get: its data has to have sums.
  BatchResult result{};         ///< get
  PeersProgress progress{};     ///< put

  // The ConnectionGroup's.
  const DataConnection* requested_on =
      nullptr;  // get: which had the question; compared and nothing else
  std::uint64_t arrived = 0, announced = 0;  // of these frames' data some may be on its way
  std::optional<std::uint64_t> total;
  bool canceled = false;
  bool refused = false;  // a put by its first frame
  Status status{};       // the first failure; of a GPU's, what comes later lands all the same
  std::vector<std::byte> notification{};  // put
  std::uint64_t after = 0;                // put: as Head::after
};

/// What a connection sends as one frame.
struct Chunk {
  std::shared_ptr<Outgoing> of;  // also the ConnectionGroup's
  RegionUse use{};  // Of the memory, if it is the peer's question: the batch's may end before.
  std::vector<Extent> extents;
  std::uint64_t position = 0, bytes = 0;
  bool last = false;
  Head head{};
};

/// Where the data of a frame goes.
struct FrameDestination {
  std::shared_ptr<Incoming> of;          // also the ConnectionGroup's
  RegionUse use{};                       ///< Of a put's memory: the batch's may end before.
  std::vector<Extent> extents;           ///< None: thrown away.
  const cuda::Device* device = nullptr;  ///< Null: host memory.
  std::uint64_t bytes = 0;
};

/// How a frame ends whose sum is not that of what has come.
Status wrong_sum(FrameType type);

/// What is to be said to the peer.
struct Answer {
  Head head;
  bool waits = false;  ///< A little: our user was told at the same time, and may send something.
};

struct ConnectionGroupOptions {
  WireRegionTable* published = nullptr;     ///< Outlives it.
  Channel* channel = nullptr;               ///< Until it has failed.
  std::uint64_t incarnation = 0, peer = 0;  ///< Of our Engine, and of the peer's.
  std::uint64_t chunk = kMaxChunk;          ///< Data of a frame.
  std::size_t inflight = 64;  ///< Batches of the peer's at once, each way; else it is dropped.
  /// If this side makes the connections: how many it has asked for, and may. Else none.
  unsigned connections = 0, max_connections = 0;
};

class ConnectionGroup {
 public:
  /// A peer's put may stand still that long; what a peer does on a region that was retracted; and
  /// from then on it may go on that long in all.
  static constexpr Duration kMaxStall = std::chrono::seconds(60),
                            kMaxStallRetracted = std::chrono::seconds(10),
                            kMaxRetracted = std::chrono::seconds(30);

  explicit ConnectionGroup(const ConnectionGroupOptions& options)
      : options_(options),
        count_(options.connections, options.max_connections),
        may_grow_(count_.may_grow()) {}
  ConnectionGroup(const ConnectionGroup&) = delete;
  ConnectionGroup& operator=(const ConnectionGroup&) = delete;
  ~ConnectionGroup() = default;  ///< Over, or without connections.

  // The Endpoint's.
  void put(std::shared_ptr<Outgoing> batch) LINKSPAN_EXCLUDES(mutex_);
  /// `spans`: of the region with that serial and token, as many bytes as the pieces have.
  void get(std::shared_ptr<Incoming> batch, Head question) LINKSPAN_EXCLUDES(mutex_);
  void cancel(FrameType type, std::uint64_t id) LINKSPAN_EXCLUDES(mutex_);
  /// As failure(): nothing is carried any more.
  Status add(std::shared_ptr<DataConnection> connection) LINKSPAN_EXCLUDES(mutex_);
  /// A connection that was asked for is not to be had: fewer will do.
  void on_connection_refused() LINKSPAN_EXCLUDES(mutex_);
  /// Unless it has failed: all batches end so.
  void fail(const Status& why) LINKSPAN_EXCLUDES(mutex_);
  std::optional<Status> failure() const LINKSPAN_EXCLUDES(mutex_);
  bool has_failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  bool is_closed() const
      LINKSPAN_EXCLUDES(mutex_);  ///< It has failed, and touches no memory any more.
  /// Once it has failed: a put of ours had not ended there.
  bool abandons() const LINKSPAN_EXCLUDES(mutex_);
  /// Grows while bytes go to the peer's kernel or come from the peer.
  std::uint64_t traffic() const LINKSPAN_EXCLUDES(mutex_);
  /// What has landed by now happened before this returns; what is sent later happens after it.
  /// False: it has failed.
  bool sync() const LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    return !failure_;
  }
  bool serves() const LINKSPAN_EXCLUDES(mutex_);  ///< Something of the peer's is in flight.
  /// Ends what the peer does on regions of this side without progress, or after their retraction
  /// (kMaxStall and so on): it answers so once the peer has come to its end, and holds no memory.
  void end_stalled(base::Time now) LINKSPAN_EXCLUDES(mutex_);
  /// Grows when end_stalled() has ended something: data connections are to let go of its memory.
  std::uint64_t revocations() const noexcept { return revocations_; }
  /// As Endpoint::served(). `now`: of the same clock as end_stalled().
  std::vector<Served> served(base::Time now) const LINKSPAN_EXCLUDES(mutex_);
  std::uint64_t chunk() const noexcept { return options_.chunk; }  ///< Data of a frame, at most.

  // The connections'.
  /// The next to be sent, of host memory or without any.
  std::optional<Chunk> next_chunk() LINKSPAN_EXCLUDES(mutex_) { return next_chunk(nullptr); }
  /// The next of memory of a GPU of which `staging` has a slot left.
  std::optional<Chunk> next_chunk(const copy::Staging* staging) LINKSPAN_EXCLUDES(mutex_);
  /// Its memory is not read any more. An error: other bytes were sent in its place.
  void sent(const Chunk& chunk, const Status& status) LINKSPAN_EXCLUDES(mutex_);
  /// Of a put or data, whose notification is taken. corrupt: the wire is to fail.
  Result<FrameDestination> resolve_destination(Head& head) LINKSPAN_EXCLUDES(mutex_);
  /// So many bytes have landed, or were thrown away.
  std::optional<Answer> data_landed(Incoming& batch, std::uint64_t bytes, const Status& status)
      LINKSPAN_EXCLUDES(mutex_);
  /// Of the other ops. corrupt: the wire is to fail.
  Status on_frame(const Head& head) LINKSPAN_EXCLUDES(mutex_);
  /// Bytes have moved: asks for more connections where these pay (data_connection_count.hpp).
  void check_rate() LINKSPAN_EXCLUDES(mutex_);
  /// It touches no memory any more.
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

  // Few at a time, by number; also the connections'.
  template <class Batch>
  using Batches = std::vector<std::shared_ptr<Batch>>;
  /// Null: none of that number.
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
  std::deque<std::shared_ptr<Outgoing>> queue_ LINKSPAN_GUARDED_BY(mutex_);  // not all taken
  // Of ours until the peer has said `ended`, answers until they are sent.
  Batches<Outgoing> puts_ LINKSPAN_GUARDED_BY(mutex_), answers_ LINKSPAN_GUARDED_BY(mutex_);
  Batches<Incoming> gets_ LINKSPAN_GUARDED_BY(mutex_), peer_puts_ LINKSPAN_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<DataConnection>> connections_
      LINKSPAN_GUARDED_BY(mutex_);  // also a thread's
  struct PendingFrame {
    std::uint64_t id;
    std::vector<std::byte> frame;
  };
  std::vector<PendingFrame> pending_frames_
      LINKSPAN_GUARDED_BY(mutex_);  // questions: no connection has come
  std::size_t next_data_connection_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  std::optional<Status> failure_ LINKSPAN_GUARDED_BY(mutex_);
  bool abandons_ LINKSPAN_GUARDED_BY(mutex_) = false;
  std::atomic<bool> failed_{false};
  std::atomic<std::uint64_t> revocations_{0};
  DataConnectionCount count_ LINKSPAN_GUARDED_BY(mutex_);
  std::atomic<bool> may_grow_;  // as count_ says; else nobody has to look
};

}  // namespace linkspan::transport::tcp
