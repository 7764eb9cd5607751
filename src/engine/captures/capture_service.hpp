// engine/captures/capture_service.hpp - captured posts: their node in the user's graph, their
// notifications, their end.
//
// On the path of a byte: only serve(), after the data, for the notification.
// Threads: any thread. Nothing blocks under the mutex, which precedes those of peers.
// Invariants: a region that a launch may still copy is in use. A state leaves the list when it is
// drained and its graph has ended.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "engine/captures/captured_state.hpp"
#include "engine/engine_context.hpp"
#include "engine/peers/peer_table.hpp"
#include "engine/transfers/stream_order.hpp"
#include "linkspan/captured_transfer.hpp"

namespace linkspan::engine {

class CaptureService {
 public:
  /// The arguments outlive this object.
  CaptureService(const EngineContext& context, const StreamOrders& streams, PeerTable& peers);
  CaptureService(const CaptureService&) = delete;
  CaptureService& operator=(const CaptureService&) = delete;
  /// Requires that all are quiet. What their graphs refer to stays until these have ended.
  ~CaptureService();

  using Captured = Result<std::shared_ptr<CapturedState>>;

  /// Adds all that was prepared to the graph that the stream captures, as one node. unsupported:
  /// the stream's GPU does not map both memories; the text names the path. invalid_argument: the
  /// stream captures no graph.
  Captured capture(const PreparedState& prepared, const StreamOrder& stream,
                   const CaptureOptions& options) LINKSPAN_EXCLUDES(mutex_);
  Status wait(CapturedState& state, std::uint64_t launches, Duration timeout)
      LINKSPAN_EXCLUDES(mutex_);
  Status status(const CapturedState& state) LINKSPAN_EXCLUDES(mutex_);
  Status close(CapturedState& state, Duration timeout) LINKSPAN_EXCLUDES(mutex_);

  /// Sends notifications and advances ends. Returns when to call it again.
  transport::PollHint serve() LINKSPAN_EXCLUDES(mutex_);
  /// Ends those with `peer`, or all, for good, if it is nullopt. Does not wait.
  void end(std::optional<std::uint64_t> peer, const Status& why) LINKSPAN_EXCLUDES(mutex_);
  /// Does the same and waits until they are drained. pending: some are not at the deadline.
  Status finish(std::optional<std::uint64_t> peer, const Status& why, base::Deadline deadline)
      LINKSPAN_EXCLUDES(mutex_);
  /// Ends those that use this region of ours. It is in use until they are quiet.
  void end_on(const memory::Registration& region) LINKSPAN_EXCLUDES(mutex_);
  std::string dump() LINKSPAN_EXCLUDES(mutex_);

 private:
  Result<const cuda::Device*> device_for(const PreparedState& prepared,
                                         const StreamOrder& stream) const;
  Status add_pair(const PreparedPair& pair, const cuda::Device& device, CapturedRegions& regions,
                  std::vector<copy::Piece>& pieces) const;
  Status no_path(const TransferEndpoints& between, const transport::BatchSummary& size,
                 const std::string& why) const;
  static void end(CapturedState& state, const Status& why);
  bool advance(CapturedState& state, std::vector<CapturedRegions>& released)
      LINKSPAN_REQUIRES(mutex_);
  bool notify(CapturedState& state) LINKSPAN_REQUIRES(mutex_);
  Status finish(base::Deadline deadline, const std::function<bool(const CapturedState&)>& which)
      LINKSPAN_EXCLUDES(mutex_);

  const EngineContext& context_;
  const StreamOrders& streams_;
  PeerTable& peers_;
  base::Mutex mutex_;
  base::Condition changed_;  // launches have ended, or one has become quiet
  std::vector<std::shared_ptr<CapturedState>> all_ LINKSPAN_GUARDED_BY(mutex_);  // also handles'
  Status refusal_ LINKSPAN_GUARDED_BY(mutex_);                                   // of new ones
};

}  // namespace linkspan::engine
