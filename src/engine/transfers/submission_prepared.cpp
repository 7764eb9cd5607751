// Submission: transfers that are prepared once and posted any number of times.
#include <string>
#include <utility>

#include "engine/transfers/submission.hpp"

namespace linkspan::engine {
namespace {

Status invalid(std::string what) {
  return {Code::invalid_argument, Scope::request, std::move(what)};
}

/// Adds a shape. Returns it with page lists that are ours, so that they stay as they are checked.
Result<Shape> add_shape(PreparedState& state, const Shape& given) {
  PreparedShape& ours = state.shapes.emplace_back();
  const auto* const pages = std::get_if<Pages>(&given);
  if (pages == nullptr) return given;
  if (pages->indices_on_gpu)
    return Status(Code::unsupported, Scope::request,
                  "page indices on a GPU are not prepared: write() and read() copy none either");
  const std::size_t count = pages->local_index.size();
  ours.lists.reserve(count + pages->remote_index.size());
  ours.lists.insert(ours.lists.end(), pages->local_index.begin(), pages->local_index.end());
  ours.lists.insert(ours.lists.end(), pages->remote_index.begin(), pages->remote_index.end());
  ours.pages = *pages;
  ours.pages->local_index = std::span(ours.lists).first(count);
  ours.pages->remote_index = std::span(ours.lists).subspan(count);
  return Shape(*ours.pages);
}

/// Adds a pair with the shape that was added last.
const TransferEndpoints& add_pair(PreparedState& state, TransferEndpoints between,
                                  std::shared_ptr<const Plan> plan,
                                  const transport::BatchSummary& size) {
  PreparedPair& pair = state.pairs.emplace_back();
  static_cast<TransferEndpoints&>(pair) = std::move(between);
  pair.plan = std::move(plan);
  pair.size = size;
  pair.shape = &state.shapes.back();
  return pair;
}

/// Returns the status of a prepared pair, with its index if there are several.
Status status_of(const PreparedState& state, std::size_t index, const Status& status) {
  return state.pairs.size() == 1 ? status : status_of_pair(index, status);
}

}  // namespace

Submission::PreparedResult Submission::prepare(std::uint64_t peer, Op op, const Region& local,
                                               const RemoteRegion& remote,
                                               const Shape& shape) const {
  auto between = resolve(peer, op, local, remote);
  if (!between.ok()) return between.status();
  auto state = std::make_shared<PreparedState>();
  const auto ours = add_shape(*state, shape);
  if (!ours.ok()) return ours.status();
  auto planned = plan(*between, *ours);
  if (!planned.ok()) return planned.status();
  add_pair(*state, *std::move(between), std::make_shared<Plan>(std::move(planned->plan)),
           planned->size);
  state->size = planned->size;
  return keep_pages(std::move(state));
}

Submission::PreparedResult Submission::prepare(std::uint64_t peer, Op op,
                                               std::span<const Pair> pairs) const {
  if (Status status = check_count(pairs.size()); !status.ok()) return status;
  auto state = std::make_shared<PreparedState>();
  state->pairs.reserve(pairs.size());
  Shape shape;  // of the pair
  PlannedBefore before;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const bool same_shape = i != 0 && are_same(pairs[i].shape, pairs[i - 1].shape);
    if (!same_shape) {
      auto ours = add_shape(*state, pairs[i].shape);
      if (!ours.ok()) return status_of_pair(i, ours.status());
      shape = *std::move(ours);
    }
    auto between =
        plan_next(peer, op, {pairs[i].local, pairs[i].remote, shape}, same_shape, {}, before);
    if (!between.ok()) return status_of_pair(i, between.status());
    before.between = &add_pair(*state, *std::move(between), before.plan, before.size);
    if (Status status = add_size(before.total, before.size); !status.ok()) return status;
  }
  state->size = before.total;
  return keep_pages(std::move(state));
}

/// Gives the page lists to the transports, each list once, and releases the local regions.
Submission::PreparedResult Submission::keep_pages(std::shared_ptr<PreparedState> state) const {
  for (PreparedPair& pair : state->pairs) {
    if (!pair.plan->pages.local_index.empty()) {
      std::unique_ptr<transport::KeptPages>& kept = pair.shape->kept[pair.transport];
      if (kept == nullptr) {
        auto made = context_.transports[pair.transport]->keep_pages(
            pair.local->region(), *pair.remote->mappings[pair.transport], *pair.shape->pages);
        if (!made.ok())
          return status_of(*state, static_cast<std::size_t>(&pair - state->pairs.data()),
                           made.status());
        kept = *std::move(made);
      }
      pair.kept = kept.get();
    }
    pair.region = std::exchange(pair.local, nullptr);
  }
  return state;
}

/// Makes a pair of a transfer out of a prepared one. Its path has to be the required one.
Result<PlannedPair> Submission::pair_of(const PreparedPair& prepared, transport::BatchSummary size,
                                        const TransferOptions& options) const {
  PlannedPair pair = prepared;
  pair.local = prepared.region.lock();
  if (pair.local == nullptr || pair.local->removed()) return not_registered();
  size.hints = hints_of(options);
  if (Status status = check_path(pair, size, options.require); !status.ok()) return status;
  return pair;
}

/// Posts `count` of the prepared pairs: those with the indices index_at(0), index_at(1) ...
template <class IndexAt>
Submission::Submitted Submission::post_each(const std::shared_ptr<PreparedState>& prepared,
                                            std::size_t count, IndexAt index_at,
                                            const TransferOptions& options) const {
  auto transfer = base::make_recycled<TransferState>();
  transfer->batches.prepared = prepared;
  transfer->batches.more.reserve(count - 1);
  transport::BatchSummary total;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t index = index_at(i), most = prepared->pairs.size();
    if (index >= most)
      return invalid("index " + std::to_string(index) + " of " + std::to_string(most) +
                     " prepared pairs, as number " + std::to_string(i) + " of the list");
    const PreparedPair& each = prepared->pairs[index];
    auto pair = pair_of(each, each.size, options);
    if (!pair.ok()) return status_of(*prepared, i, pair.status());
    transfer->add(*std::move(pair));
    if (Status status = add_size(total, each.size); !status.ok()) return status;
  }
  return released(start(std::move(transfer), total, options));
}

Submission::Submitted Submission::post(const std::shared_ptr<PreparedState>& prepared,
                                       const TransferOptions& options) const {
  return post_each(
      prepared, prepared->pairs.size(), [](std::size_t i) { return i; }, options);
}

Submission::Submitted Submission::post_pairs(const std::shared_ptr<PreparedState>& prepared,
                                             std::span<const std::uint32_t> indices,
                                             const TransferOptions& options) const {
  if (Status status = check_count(indices.size()); !status.ok()) return status;
  return post_each(
      prepared, indices.size(), [&](std::size_t i) { return indices[i]; }, options);
}

Submission::Submitted Submission::post(const PreparedState& prepared,
                                       std::span<const std::uint32_t> subset,
                                       const TransferOptions& options) const {
  auto transfer = base::make_recycled<TransferState>();
  transfer->batches.more.reserve(prepared.pairs.size() - 1);
  std::shared_ptr<Plan> plan;  // of the pair before
  transport::BatchSummary total;
  for (std::size_t i = 0; i < prepared.pairs.size(); ++i) {
    const PreparedPair& each = prepared.pairs[i];
    const PreparedPair& before = prepared.pairs[i == 0 ? 0 : i - 1];
    const std::optional<Pages>& pages = each.shape->pages;
    if (!pages)
      return status_of(prepared, i, invalid("a subset of what was prepared without page lists"));
    const std::size_t length = pages->local_index.size(),
                      first = prepared.pairs.front().shape->pages->local_index.size();
    if (length != first)
      return status_of(prepared, i,
                       invalid("positions in " + std::to_string(length) +
                               " prepared pages, and in " + std::to_string(first) +
                               " of pair 0: prepare lists of one length, or post whole pairs"));
    if (i == 0 || each.shape != before.shape || each.transport != before.transport) {
      auto made = make_plan(*pages, subset, context_.transports[each.transport]->capabilities());
      if (!made.ok()) return made.status();
      plan = base::make_recycled<Plan>();
      *plan = *std::move(made);
    }
    const transport::BatchSummary size{.blocks = pages->page_bytes == 0 ? 0 : subset.size(),
                                       .bytes = pages->page_bytes * subset.size()};
    auto pair = pair_of(each, size, options);
    if (!pair.ok()) return status_of(prepared, i, pair.status());
    pair->plan = plan;
    pair->kept = nullptr;
    transfer->add(*std::move(pair));
    if (Status status = add_size(total, size); !status.ok()) return status;
  }
  return released(start(std::move(transfer), total, options));
}

}  // namespace linkspan::engine
