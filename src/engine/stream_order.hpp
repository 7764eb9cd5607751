// engine/stream_order.hpp - transfers in the order of a user's streams.
//
// On the path of a byte beside the submission: before it, an event marks where the user's stream
// stands; after it, that stream waits for an event behind the copy. Where a GPU of ours copies,
// both lie in our stream and no CPU is asked in between. Where a CPU or the peer copies, the
// TransferScheduler asks the mark whether the stream has come by, and a StreamBlocker holds the
// user's stream until the end. All calls on the user's stream are made here, in the thread that
// submits, without a lock: a stream that is full blocks whoever submits to it (docs/cuda_notes.md,
// "queues").
// Threads: StreamOrders: any thread. ResolvedStreams: one thread's stack. StreamBlocker: open() any
// thread, beside arm() too.
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

/// A stream of the user's as the driver knows it.
struct UserStream {
  const cuda::Device* device = nullptr;  ///< Null: none.
  cuda::CUstream handle = nullptr;
  std::uint64_t key = 0;  ///< Tells it from others of this process.
};

class StreamBlockerPool;

/// Holds a stream of the user's from arm() until open(), or its end. What was opened before or
/// during arm() holds nothing.
class StreamBlocker {
 public:
  StreamBlocker(const StreamBlocker&) = delete;
  StreamBlocker& operator=(const StreamBlocker&) = delete;
  ~StreamBlocker();

  Status arm(const UserStream& stream);
  void open() noexcept;

 private:
  friend class StreamBlockerPool;
  struct Parts;
  StreamBlocker(std::shared_ptr<StreamBlockerPool> pool, std::unique_ptr<Parts> parts);

  std::shared_ptr<StreamBlockerPool> pool_;  // also of other Gates and of StreamOrders
  std::unique_ptr<Parts> parts_;
};

/// What one submission has to do with streams.
struct ResolvedStreams {
  std::optional<cuda::DeviceScope> scope;  ///< So that all calls of a submission share one.
  UserStream after, release;
  std::optional<cuda::PooledEvent> mark;  ///< Where `after` stands.
  std::shared_ptr<StreamBlocker>
      blocker;  ///< For `release`, if our stream cannot tell; also the transfer's.
  cuda::DeferredDestroyer::DeferralGuard deferral;  ///< Until the transfer is quiet.
};

class StreamOrders {
 public:
  explicit StreamOrders(cuda::Topology* topology);  ///< Null: no GPU here. It outlives this.
  ~StreamOrders();
  StreamOrders(const StreamOrders&) = delete;
  StreamOrders& operator=(const StreamOrders&) = delete;

  /// OFF THE DATA PATH, whenever GPUs may have come up: makes what place() needs for a release on
  /// them, since to make it may wait for a stream that stands still. place() makes what is missing.
  void make_ready() LINKSPAN_EXCLUDES(mutex_);

  /// Marks the stream of `after` and finds that of `release`. `gpu` is meant where they name none.
  /// unsupported: a stream records a graph. invalid_argument: no such GPU or handle. no_resource:
  /// 4096 transfers wait behind streams, or 16 streams wait for transfers.
  Result<ResolvedStreams> resolve(const StreamOrder& after, const StreamOrder& release,
                                  const GpuUuid& gpu) LINKSPAN_EXCLUDES(mutex_);

 private:
  Result<UserStream> find(const StreamOrder& order, const GpuUuid& gpu) const;
  Result<std::shared_ptr<StreamBlockerPool>> blocker_pool(const cuda::Device& device)
      LINKSPAN_EXCLUDES(mutex_);

  cuda::Topology* const topology_;
  base::Mutex mutex_;
  // Gates hold them too.
  std::map<const cuda::Device*, std::shared_ptr<StreamBlockerPool>> blocker_pools_
      LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::engine
