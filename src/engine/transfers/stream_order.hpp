// engine/transfers/stream_order.hpp - orders transfers with a user's CUDA streams.
//
// On the path of a byte: beside the submission. Before it, an event marks the position of the
// user's stream; after it, that stream waits for an event after the copy. If a GPU of ours copies,
// both events are in our stream and no CPU is involved. If a CPU or the peer copies, the
// PeerScheduler polls the mark, and a StreamBlocker blocks the user's stream until the end.
// Threads: StreamOrders: any thread. ResolvedStreams: one thread's stack. StreamBlocker: open() any
// thread, also during arm().
// Invariants: all calls on the user's stream are made here, in the thread that submits, without a
// lock: a full stream blocks the thread that submits to it (docs/cuda_notes.md, "queues").
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "cuda/event.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"

namespace linkspan::engine {

/// A user's stream as the driver identifies it.
struct UserStream {
  const cuda::Device* device = nullptr;  ///< Null if no stream was named.
  cuda::CUstream handle = nullptr;
  std::uint64_t key = 0;  ///< Unique among the streams of this process.
};

class StreamBlockerPool;

/// Blocks a user's stream from arm() until open() or the destructor. After an open() before or
/// during arm() it blocks nothing.
class StreamBlocker {
 public:
  StreamBlocker(const StreamBlocker&) = delete;
  StreamBlocker& operator=(const StreamBlocker&) = delete;
  ~StreamBlocker();

  Status arm(const UserStream& stream);
  void open() noexcept;

 private:
  friend class StreamBlockerPool;
  struct BlockerParts;
  StreamBlocker(std::shared_ptr<StreamBlockerPool> pool, std::unique_ptr<BlockerParts> parts);

  std::shared_ptr<StreamBlockerPool> pool_;  // also other StreamBlockers' and StreamOrders'
  std::unique_ptr<BlockerParts> parts_;
};

/// The streams of one submission.
struct ResolvedStreams {
  std::optional<cuda::DeviceScope> scope;  ///< Shared by all calls of a submission.
  UserStream after, release;
  std::optional<cuda::PooledEvent> mark;  ///< Recorded in `after`.
  std::shared_ptr<StreamBlocker>
      blocker;  ///< For `release`, if no event of ours can; also the transfer's.
  cuda::DeferredDestroyer::DeferralGuard deferral;  ///< Until the transfer is quiet.
};

/// How a user's stream is made to wait for the end of a transfer.
struct StreamRelease {
  std::optional<cuda::PooledEvent> event;  ///< The stream waits for it.
  bool blocks = false;                     ///< No event, and the end opens the blocker.
};

/// The user's streams of one transfer.
/// Threads: under the peer's mutex.
struct TransferStreams {
  UserStream after;                       // the copy runs after it
  std::optional<cuda::PooledEvent> mark;  // recorded in `after`; until all is posted
  // After the copy in our stream; the release stream waits for it.
  std::optional<cuda::PooledEvent> release_event;
  std::shared_ptr<StreamBlocker> blocker;           // or this blocks it; also the submission's
  cuda::DeferredDestroyer::DeferralGuard deferral;  // while user streams are involved
  bool wants_release = false;                       // a batch may still record `release_event`

  /// Moves out of `resolved` what the transfer needs until it is quiet.
  void adopt(ResolvedStreams& resolved);
  /// Returns whether `after` has reached the mark.
  Result<bool> passed() const;
  /// Ends the time in which a batch may record the release event. `quiet`: the transfer is.
  StreamRelease release(std::shared_ptr<StreamBlocker> by, bool quiet);
  void end();  ///< Releases the streams, whatever the transfer's status.
};

class StreamOrders {
 public:
  explicit StreamOrders(cuda::Topology* topology);  ///< Null without a GPU. Outlives this.
  ~StreamOrders();
  StreamOrders(const StreamOrders&) = delete;
  StreamOrders& operator=(const StreamOrders&) = delete;

  /// Makes what resolve() needs for a release on GPUs that have come up. Called off the data path,
  /// because it may wait for a stalled stream. resolve() makes what is missing.
  void make_ready() LINKSPAN_EXCLUDES(mutex_);

  /// Records an event in the stream of `after` and finds that of `release`. `gpu` is the default if
  /// they name no GPU. unsupported: a stream records a graph. invalid_argument: no such GPU or
  /// handle. no_resource: 4096 transfers wait for streams, or 16 streams wait for transfers.
  Result<ResolvedStreams> resolve(const StreamOrder& after, const StreamOrder& release,
                                  const GpuUuid& gpu) LINKSPAN_EXCLUDES(mutex_);

  /// Finds a stream of the user. `gpu` is the default if the order names no GPU. Errors as
  /// resolve().
  Result<UserStream> find(const StreamOrder& order, const GpuUuid& gpu) const;

 private:
  Result<std::shared_ptr<StreamBlockerPool>> blocker_pool(const cuda::Device& device)
      LINKSPAN_EXCLUDES(mutex_);

  cuda::Topology* const topology_;
  base::Mutex mutex_;
  // Shared with StreamBlockers.
  std::map<const cuda::Device*, std::shared_ptr<StreamBlockerPool>> blocker_pools_
      LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::engine
