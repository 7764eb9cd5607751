// PeerScheduler: what is left of a batch goes on over another transport where its own has failed.
#include <utility>

#include "engine/transfers/peer_scheduler.hpp"
#include "transport/batch.hpp"

namespace linkspan::engine {

/// Returns the next transport that reaches the peer's region, or the number of transports.
std::size_t PeerScheduler::transport_after(const PostedBatch& batch) const {
  const auto& mappings = batch.of->all_pairs()[batch.pair].remote->mappings;
  std::size_t next = batch.transport + 1;
  while (next < mappings.size() && (mappings[next] == nullptr || endpoints_.at(next) == nullptr))
    ++next;
  return next < mappings.size() ? next : transports_.size();
}

/// Returns whether a batch that ended so, or was refused so, goes on over another transport.
bool PeerScheduler::fails_over(const PostedBatch& batch, const Status& why) const {
  const TransferState& transfer = *batch.of;
  return why.code() == Code::unreachable && why.scope() == Scope::transport &&
         transfer.batches.failover.allowed && transfer.ending.first_error.ok() &&
         !transfer.ending.is_asked() && transport_after(batch) != transports_.size();
}

/// Adds what is left of a batch, which counts as posted and is not in flight. Requires
/// fails_over().
void PeerScheduler::move_over(const PostedBatch& batch, const Status& why,
                              std::vector<Block> left) {
  TransferState& transfer = *batch.of;
  const std::size_t next = transport_after(batch);
  Plan plan = make_plan(std::move(left), transports_[next]->capabilities());
  plan.checked = true;
  transfer.batches.failover.moved.push_back({batch.pair, next, std::move(plan)});
  transfer.batches.count += transfer.batches.failover.moved.back().plan.batches;
  transfer.by_user.allowed = false;
  ++counters_.failovers;
  if (log_.enabled(base::Level::info))
    log_.write(base::Level::info, "transfer " + std::to_string(transfer.id) + " to peer " +
                                      std::to_string(transfer.peer) + " goes on over " +
                                      std::string(transports_[next]->name()) + ": " + why.what());
}

/// Does so with a batch that has ended, and forgets its error.
void PeerScheduler::move_over(const PostedBatch& batch, transport::Completion& failed) {
  if (!fails_over(batch, failed.status)) return;
  // First, because it may find no memory.
  if (batch.of->batches.all_posted()) queue_.push_back(transfers_.at(batch.of->id));
  move_over(batch, failed.status, std::move(failed.unfinished));
  failed.status = Status();
}

}  // namespace linkspan::engine
