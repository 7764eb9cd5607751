#include "engine/transfers/transfer.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace linkspan::engine {

TransferState::NextBatch TransferState::next_batch() const noexcept {
  if (!batches.failover.moved.empty()) {
    const MovedBatch& moved = batches.failover.moved.front();
    return {
        all_pairs()[moved.pair], moved.pair, moved.transport, moved.plan, moved.posted, nullptr};
  }
  const PairPlan copied = batches.of_pair(batches.next.pair);
  const TransferEndpoints& between = all_pairs()[batches.next.pair];
  return {between,      batches.next.pair,  between.transport,
          *copied.plan, batches.next.batch, copied.kept};
}

void TransferState::count_posted(std::size_t joined) noexcept {
  const std::size_t of_pair = next_batch().plan.batches;
  batches.posted += 1 + joined;
  ++batches.in_flight;
  if (!batches.failover.moved.empty()) {
    if (++batches.failover.moved.front().posted == of_pair) batches.failover.moved.pop_front();
    return;
  }
  if (++batches.next.batch < of_pair) return;
  batches.next.batch = 0;
  batches.next.pair += 1 + joined;
}

std::size_t PairsAfterNext::alike(std::size_t most) const {
  most = std::min(most, count_);
  if (most == 0 || (transfer_.batches.by_pair.empty() && transfer_.pairs->alike())) return most;
  std::size_t count = 0;
  while (count < most && is_alike(count)) ++count;
  return count;
}

const Pages* PairsAfterNext::pages(std::size_t index) const {
  if (index >= count_ || !goes_with_next(index)) return nullptr;
  const Plan& plan = *transfer_.batches.of_pair(first_ + index).plan;
  const bool pages_alone = plan.batches == 1 && plan.checked && !plan.pages.local_index.empty() &&
                           !plan.pages.indices_on_gpu;
  return pages_alone ? &plan.pages : nullptr;
}

bool PairsAfterNext::goes_with_next(std::size_t index) const {
  const auto pairs = transfer_.pairs->all();
  return pairs[first_ + index].transport == pairs[first_ - 1].transport;
}

bool PairsAfterNext::is_alike(std::size_t index) const {
  const PairPlan next = transfer_.batches.of_pair(first_ - 1),
                 other = transfer_.batches.of_pair(first_ + index);
  return other.plan == next.plan && other.kept == next.kept && goes_with_next(index);
}

Status status_of_pair(std::size_t index, const Status& status) {
  return {status.code(), status.scope(), "pair " + std::to_string(index) + ": " + status.what()};
}

transport::TransferHints hints_of(const TransferOptions& options) {
  using Kind = StreamOrder::Kind;
  const bool in_a_stream = options.after.kind != Kind::none || options.release.kind != Kind::none;
  return {.low_latency = options.low_latency && !in_a_stream,
          .ctas = options.copy_ctas.value_or(transport::TransferHints{}.ctas),
          .checksum = options.checksum};
}

bool satisfies(std::string_view path, bool leaves_host, std::string_view required) {
  const bool not_that = required.starts_with('!');
  if (not_that) required.remove_prefix(1);
  return (required == "local" ? path.empty() || !leaves_host : path.starts_with(required)) !=
         not_that;
}

Status TransferEnding::user_status(const Status& status) const {
  if (status.ok() || status.code() == Code::disconnected || !is_asked()) return status;
  std::string what = expired ? "its deadline passed" : "canceled by its owner";
  if (!status.what().empty()) what.append("; ").append(status.what());
  return {expired ? Code::timed_out : Code::canceled, Scope::request, std::move(what)};
}

}  // namespace linkspan::engine
