// Prepared transfers: checked and planned once, posted at the cost of a launch.
#include <utility>

#include "engine/core.hpp"

namespace linkspan::engine {

Result<Prepared> Core::prepare(std::uint64_t peer, Op op, const Region& local,
                               const RemoteRegion& remote, UserShape shape) {
  auto between = sides(peer, op, local, remote);
  if (!between.ok()) return between.status();
  auto state = std::make_shared<PreparedState>();
  static_cast<Sides&>(*state) = *std::move(between);
  if (auto* pages = std::get_if<Pages>(&shape)) {  // first ours, then checked
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
  state->plan.checked = true;
  state->size = planned->size;
  auto* keeper = dynamic_cast<transport::PageKeeper*>(transports_[state->transport].get());
  if (keeper != nullptr && !state->plan.pages.local_index.empty()) {
    auto kept = keeper->keep_pages(state->local->region(),
                                   *state->remote->mappings[state->transport], state->pages);
    if (!kept.ok()) return kept.status();
    state->kept = *std::move(kept);
  }
  return Prepared(shared_from_this(), std::move(state));
}

Result<Transfer> Core::post(const std::shared_ptr<PreparedState>& prepared,
                            const TransferOptions& options) {
  if (Status status = is_registered(*prepared->local); !status.ok()) return status;
  auto transfer = std::make_shared<TransferState>();
  static_cast<Sides&>(*transfer) = *prepared;
  transfer->prepared = prepared;
  return begin(std::move(transfer), prepared->size, options);
}

Result<Transfer> Core::post(const PreparedState& prepared, std::span<const std::uint32_t> subset,
                            const TransferOptions& options) {
  if (!prepared.has_pages)
    return Status(Code::invalid_argument, Scope::request,
                  "a subset of what was prepared without page lists");
  if (Status status = is_registered(*prepared.local); !status.ok()) return status;
  auto plan = make_plan(prepared.pages, subset, transports_[prepared.transport]->capabilities());
  if (!plan.ok()) return plan.status();
  auto transfer = std::make_shared<TransferState>();
  static_cast<Sides&>(*transfer) = prepared;
  transfer->own = *std::move(plan);
  const std::uint64_t page = prepared.pages.page_bytes;
  return begin(std::move(transfer),
               {.blocks = page == 0 ? 0 : subset.size(), .bytes = page * subset.size()}, options);
}

}  // namespace linkspan::engine
