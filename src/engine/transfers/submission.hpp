// engine/transfers/submission.hpp - how transfers begin: checked, planned and submitted, or
// prepared once and posted any number of times.
//
// On the path of a byte: between the user's call and PeerScheduler::submit().
// Threads: any thread.
// Invariants: what is submitted lies within both regions and takes the path that was required.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine_context.hpp"
#include "engine/peers/peer_table.hpp"
#include "engine/transfers/router.hpp"
#include "engine/transfers/stream_order.hpp"
#include "engine/transfers/transfer.hpp"

namespace linkspan::engine {

class EngineImpl;

class Submission {
 public:
  /// The references outlive this object. `engine` identifies the Engine's own handles.
  Submission(const EngineImpl* engine, const EngineContext& context, StreamOrders& streams,
             PeerTable& peers)
      : engine_(engine), context_(context), streams_(streams), peers_(peers) {}

  RegionPairsCache& pairs() noexcept { return *pairs_; }

  using Submitted = Result<std::shared_ptr<TransferState>>;

  /// Finds both regions and the transport. invalid_argument: a region is not registered here, or is
  /// not of that peer. unreachable: no transport reaches it.
  Result<TransferEndpoints> resolve(std::uint64_t peer, Op op, const Region& local,
                                    const RemoteRegion& remote) const;
  Submitted submit(std::uint64_t peer, Op op, const Region& local, const RemoteRegion& remote,
                   const Shape& shape, const TransferOptions& options) const;
  /// A pair of regions of a submission that has several, and what is copied between them.
  struct Pair {
    const Region& local;
    const RemoteRegion& remote;
    const Shape& shape;
  };
  /// Submits one transfer between all pairs. Errors name the pair by its index.
  Submitted submit(std::uint64_t peer, Op op, std::span<const Pair> pairs,
                   const TransferOptions& options) const;
  /// Submits one write of `local` to each target. They run beside each other.
  std::vector<Submitted> write_to_all(const Region& local, std::span<const RemoteRegion> targets,
                                      const Shape& shape, const TransferOptions& options) const;
  using PreparedResult = Result<std::shared_ptr<PreparedState>>;
  PreparedResult prepare(std::uint64_t peer, Op op, const Region& local, const RemoteRegion& remote,
                         const Shape& shape) const;
  /// Prepares one transfer between all pairs. Errors name the pair by its index.
  PreparedResult prepare(std::uint64_t peer, Op op, std::span<const Pair> pairs) const;
  Submitted post(const std::shared_ptr<PreparedState>& prepared,
                 const TransferOptions& options) const;
  Submitted post(const PreparedState& prepared, std::span<const std::uint32_t> subset,
                 const TransferOptions& options) const;
  Submitted post_pairs(const std::shared_ptr<PreparedState>& prepared,
                       std::span<const std::uint32_t> indices,
                       const TransferOptions& options) const;
  /// Submits one block of a region that may have been deregistered. no_resource: try again.
  Submitted copy(std::uint64_t peer, Op op, const memory::RegionId& local,
                 const std::shared_ptr<ImportedRegion>& remote, std::size_t transport,
                 const Block& block) const;
  /// Explains the path of the transport that `between` names. Empty: it has none.
  Result<Explanation> explain(const TransferEndpoints& between,
                              const transport::BatchSummary& size) const;
  /// Explains the first transport that has a path, from that one on. Those before it are refused.
  Result<Explanation> explain_failover(TransferEndpoints between,
                                       const transport::BatchSummary& size) const;
  /// Returns the deadline of a transfer that is submitted now.
  base::Time deadline_of(const TransferOptions& options, base::Time now) const;
  /// Makes the release stream wait for an event in our stream, or for a StreamBlocker that the end
  /// of the transfer opens. Both fail only if the user's context failed, which then runs nothing.
  void release_stream(TransferState& transfer, ResolvedStreams& streams) const;

 private:
  struct Planned {
    Plan plan;
    transport::BatchSummary size;
  };
  /// A submitted transfer whose release stream does not wait for it yet.
  struct Started {
    std::shared_ptr<TransferState> transfer;  // also the PeerScheduler's
    ResolvedStreams streams;
  };

  static Status not_registered();
  Result<Planned> plan(const TransferEndpoints& between, const Shape& shape) const {
    return plan(between.transport, sizes_of(between), shape);
  }
  Result<Planned> plan(std::size_t transport, const RegionSizes& regions, const Shape& shape) const;
  Result<Planned> plan(TransferEndpoints& between, const Shape& shape,
                       const TransferOptions& options) const;
  Status check_path(const TransferEndpoints& between, const transport::BatchSummary& size,
                    const std::string& required) const;
  static bool are_same(const Shape& a, const Shape& b);
  static Status check_count(std::size_t pairs);
  static Status add_size(transport::BatchSummary& total, const transport::BatchSummary& pair);
  Result<TransferEndpoints> resolve(std::uint64_t peer, Op op, const Pair& pair,
                                    const TransferOptions& options) const;
  Result<AcquiredPairs> acquire(std::uint64_t peer, Op op, std::span<const Pair> pairs,
                                const TransferOptions& options) const;
  Result<AcquiredPairs> acquire(std::vector<TransferEndpoints> all, bool kept) const;
  Result<transport::BatchSummary> plan(TransferBatches& batches, const RegionPairs& between,
                                       std::span<const Pair> pairs) const;
  PreparedResult keep_pages(std::shared_ptr<PreparedState> state) const;
  Result<TransferEndpoints> resolve(const PreparedPair& prepared, transport::BatchSummary size,
                                    const TransferOptions& options) const;
  template <class IndexAt, class SizeOf>
  Result<transport::BatchSummary> use(TransferState& transfer, const PreparedState& prepared,
                                      std::size_t count, const IndexAt& index_at,
                                      const SizeOf& size_of, const TransferOptions& options) const;
  template <class IndexAt>
  Submitted post_each(const std::shared_ptr<PreparedState>& prepared, std::size_t count,
                      IndexAt index_at, const TransferOptions& options) const;
  Result<Started> start(std::shared_ptr<TransferState> transfer, transport::BatchSummary size,
                        const TransferOptions& options) const;
  Submitted released(Result<Started> started) const;

  const EngineImpl* const engine_;
  const EngineContext& context_;
  StreamOrders& streams_;
  PeerTable& peers_;
  // Imports refer to it.
  const std::shared_ptr<RegionPairsCache> pairs_ = std::make_shared<RegionPairsCache>();
};

}  // namespace linkspan::engine
