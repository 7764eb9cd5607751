#include "engine/transfers/transfer.hpp"

#include <string>
#include <utility>

namespace linkspan::engine {

TransferState::NextBatch TransferState::next_batch() const noexcept {
  if (batches.part == 0) return {*this, batches.plan(), batches.posted_of_part, batches.kept};
  const PlannedPair& part = batches.more[batches.part - 1];
  return {part, *part.plan, batches.posted_of_part, part.kept};
}

const TransferEndpoints& TransferState::add(PlannedPair pair) {
  if (batches.shared != nullptr) return batches.more.emplace_back(std::move(pair));
  batches.shared = std::move(pair.plan);
  batches.kept = pair.kept;
  return static_cast<TransferEndpoints&>(*this) = std::move(pair);
}

void TransferState::count_posted(std::size_t joined) noexcept {
  const std::size_t of_part = next_batch().plan.batches;
  batches.posted += 1 + joined;
  ++batches.in_flight;
  if (++batches.posted_of_part < of_part) return;
  batches.posted_of_part = 0;
  batches.part += 1 + joined;
}

bool TransferState::acquire_local() {
  std::size_t acquired = 0;
  bool all = true;
  for_each_pair([&](const TransferEndpoints& pair) {
    all = all && pair.local->acquire();
    acquired += all ? 1 : 0;
  });
  if (all) return true;
  for_each_pair([&](const TransferEndpoints& pair) {
    if (acquired == 0) return;
    --acquired;
    pair.local->release();
  });
  return false;
}

void TransferState::release_local() {
  for_each_pair([](const TransferEndpoints& pair) { pair.local->release(); });
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
