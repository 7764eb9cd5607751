// Submission: transfers that are prepared once and posted any number of times.
#include <string>
#include <utility>

#include "engine/transfers/submission.hpp"

namespace linkspan::engine {

Result<std::shared_ptr<PreparedState>> Submission::prepare(std::uint64_t peer, Op op,
                                                           const Region& local,
                                                           const RemoteRegion& remote,
                                                           Shape shape) const {
  auto between = resolve(peer, op, local, remote);
  if (!between.ok()) return between.status();
  auto state = std::make_shared<PreparedState>();
  static_cast<TransferEndpoints&>(*state) = *std::move(between);
  if (auto* pages = std::get_if<Pages>(&shape)) {  // first ours, then checked
    if (pages->indices_on_gpu)
      return Status(Code::unsupported, Scope::request,
                    "page indices on a GPU are not prepared: write() and read() copy none either");
    std::vector<std::uint32_t>& lists = state->lists;
    const std::size_t count = pages->local_index.size();
    lists.reserve(count + pages->remote_index.size());
    lists.insert(lists.end(), pages->local_index.begin(), pages->local_index.end());
    lists.insert(lists.end(), pages->remote_index.begin(), pages->remote_index.end());
    pages->local_index = std::span(lists).first(count);
    pages->remote_index = std::span(lists).subspan(count);
    state->pages = *pages;
    state->has_pages = true;
  }
  auto planned = plan(*state, shape);
  if (!planned.ok()) return planned.status();
  state->plan = std::move(planned->plan);
  state->size = planned->size;
  if (!state->plan.pages.local_index.empty()) {
    auto kept = context_.transports[state->transport]->keep_pages(
        state->local->region(), *state->remote->mappings[state->transport], state->pages);
    if (!kept.ok()) return kept.status();
    state->kept = *std::move(kept);
  }
  state->region = state->local;
  state->local = nullptr;
  return state;
}

/// Makes a transfer without a plan.
Result<std::shared_ptr<TransferState>> Submission::transfer_of(
    const PreparedState& prepared) const {
  auto local = prepared.region.lock();
  if (local == nullptr || local->removed()) return not_registered();
  auto transfer = base::make_recycled<TransferState>();
  static_cast<TransferEndpoints&>(*transfer) = prepared;
  transfer->local = std::move(local);
  return transfer;
}

Submission::Submitted Submission::post(const std::shared_ptr<PreparedState>& prepared,
                                       const TransferOptions& options) const {
  auto transfer = transfer_of(*prepared);
  if (!transfer.ok()) return transfer.status();
  (*transfer)->batches.prepared = prepared;
  return post(*std::move(transfer), prepared->size, options);
}

Submission::Submitted Submission::post(const PreparedState& prepared,
                                       std::span<const std::uint32_t> subset,
                                       const TransferOptions& options) const {
  if (!prepared.has_pages)
    return Status(Code::invalid_argument, Scope::request,
                  "a subset of what was prepared without page lists");
  auto transfer = transfer_of(prepared);
  if (!transfer.ok()) return transfer.status();
  auto plan =
      make_plan(prepared.pages, subset, context_.transports[prepared.transport]->capabilities());
  if (!plan.ok()) return plan.status();
  (*transfer)->batches.own = *std::move(plan);
  const std::uint64_t page = prepared.pages.page_bytes;
  return post(*std::move(transfer),
              {.blocks = page == 0 ? 0 : subset.size(), .bytes = page * subset.size()}, options);
}

Submission::Submitted Submission::post(std::shared_ptr<TransferState> transfer,
                                       transport::BatchSummary size,
                                       const TransferOptions& options) const {
  size.hints = hints_of(options);
  if (Status status = check_path(*transfer, size, options.require); !status.ok()) return status;
  return released(start(std::move(transfer), size, options));
}

}  // namespace linkspan::engine
