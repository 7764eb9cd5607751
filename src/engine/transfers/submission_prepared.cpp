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

/// Adds a pair with the shape and the plan that were added last.
void add_pair(PreparedState& state, TransferEndpoints between,
              const transport::BatchSummary& size) {
  PreparedPair& pair = state.pairs.emplace_back();
  static_cast<TransferEndpoints&>(pair) = std::move(between);
  pair.copied.plan = &state.plans.back();
  pair.size = size;
  pair.shape = &state.shapes.back();
}

/// Returns whether it is the registration that was prepared.
bool is_same(const std::weak_ptr<const memory::Registration>& prepared,
             const std::shared_ptr<const memory::Registration>& other) {
  return !prepared.owner_before(other) && !other.owner_before(prepared);
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
  state->plans.push_back(std::move(planned->plan));
  add_pair(*state, *std::move(between), planned->size);
  state->size = planned->size;
  return keep_pages(std::move(state));
}

Submission::PreparedResult Submission::prepare(std::uint64_t peer, Op op,
                                               std::span<const Pair> pairs) const {
  if (Status status = check_count(pairs.size()); !status.ok()) return status;
  auto state = std::make_shared<PreparedState>();
  state->pairs.reserve(pairs.size());
  Shape shape;  // of the pair
  transport::BatchSummary size;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const bool same_shape = i != 0 && are_same(pairs[i].shape, pairs[i - 1].shape);
    if (!same_shape) {
      auto ours = add_shape(*state, pairs[i].shape);
      if (!ours.ok()) return status_of_pair(i, ours.status());
      shape = *std::move(ours);
    }
    auto between = resolve(peer, op, pairs[i], {});
    if (!between.ok()) return status_of_pair(i, between.status());
    const bool planned_before = same_shape && between->transport == state->pairs.back().transport;
    if (!planned_before || !plan_holds(state->pairs.back(), *between)) {
      auto planned = plan(*between, shape);
      if (!planned.ok()) return status_of_pair(i, planned.status());
      size = planned->size;
      // Else the plan is the same, and only its check was needed.
      if (!planned_before) state->plans.push_back(std::move(planned->plan));
    }
    add_pair(*state, *std::move(between), size);
    if (Status status = add_size(state->size, size); !status.ok()) return status;
  }
  return keep_pages(std::move(state));
}

/// Gives the page lists to the transports, each list once, and releases the local regions.
Submission::PreparedResult Submission::keep_pages(std::shared_ptr<PreparedState> state) const {
  for (PreparedPair& pair : state->pairs) {
    if (!pair.copied.plan->pages.local_index.empty()) {
      std::unique_ptr<transport::KeptPages>& kept = pair.shape->kept[pair.transport];
      if (kept == nullptr) {
        auto made = context_.transports[pair.transport]->keep_pages(
            pair.local->region(), *pair.remote->mappings[pair.transport], *pair.shape->pages);
        if (!made.ok())
          return status_of(*state, static_cast<std::size_t>(&pair - state->pairs.data()),
                           made.status());
        kept = *std::move(made);
      }
      pair.copied.kept = kept.get();
    }
    pair.region = std::exchange(pair.local, nullptr);
  }
  return state;
}

/// Returns the regions of a prepared pair. Its path has to be the required one.
Result<TransferEndpoints> Submission::resolve(const PreparedPair& prepared,
                                              transport::BatchSummary size,
                                              const TransferOptions& options) const {
  TransferEndpoints between = prepared;
  between.local = prepared.region.lock();
  if (between.local == nullptr || between.local->removed()) return not_registered();
  size.hints = hints_of(options);
  if (Status status = check_path(between, size, options.require); !status.ok()) return status;
  return between;
}

/// Gives a transfer the regions of `count` prepared pairs: those with the indices index_at(0),
/// index_at(1) ... of which size_of(pair) is copied. Returns the size of all.
template <class IndexAt, class SizeOf>
Result<transport::BatchSummary> Submission::use(TransferState& transfer,
                                                const PreparedState& prepared, std::size_t count,
                                                const IndexAt& index_at, const SizeOf& size_of,
                                                const TransferOptions& options) const {
  transport::BatchSummary total;
  for (std::size_t i = 0; i < count; ++i)
    if (Status status = add_size(total, size_of(prepared.pairs[index_at(i)])); !status.ok())
      return status;
  if (count == 1) {
    auto between = resolve(prepared.pairs[index_at(0)], total, options);
    if (!between.ok()) return status_of(prepared, 0, between.status());
    static_cast<TransferEndpoints&>(transfer) = *std::move(between);
    return total;
  }
  const bool kept = options.require.empty();
  if (kept) {
    AcquiredPairs found = pairs_->find(count, [&](std::size_t i, const TransferEndpoints& between) {
      const PreparedPair& pair = prepared.pairs[index_at(i)];
      return between.op == pair.op && between.remote == pair.remote &&
             between.transport == pair.transport && is_same(pair.region, between.local);
    });
    if (found) {
      transfer.use(std::move(found));
      return total;
    }
  }
  std::vector<TransferEndpoints> all;
  all.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const PreparedPair& pair = prepared.pairs[index_at(i)];
    auto between = resolve(pair, size_of(pair), options);
    if (!between.ok()) return status_of(prepared, i, between.status());
    all.push_back(*std::move(between));
  }
  auto made = acquire(std::move(all), kept);
  if (!made.ok()) return made.status();
  transfer.use(*std::move(made));
  return total;
}

/// Posts `count` of the prepared pairs: those with the indices index_at(0), index_at(1) ...
template <class IndexAt>
Submission::Submitted Submission::post_each(const std::shared_ptr<PreparedState>& prepared,
                                            std::size_t count, IndexAt index_at,
                                            const TransferOptions& options) const {
  auto transfer = base::make_recycled<TransferState>();
  TransferBatches& batches = transfer->batches;
  batches.prepared = prepared;
  auto size = use(
      *transfer, *prepared, count, index_at, [](const PreparedPair& pair) { return pair.size; },
      options);
  if (!size.ok()) return size.status();
  if (prepared->uniform()) {
    batches.common = prepared->pairs.front().copied;
  } else {
    batches.by_pair.reserve(count);
    for (std::size_t i = 0; i < count; ++i)
      batches.by_pair.push_back(prepared->pairs[index_at(i)].copied);
  }
  transfer->by_user.allowed = true;
  return released(start(std::move(transfer), *size, options));
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
  const std::size_t most = prepared->pairs.size();
  for (std::size_t i = 0; i < indices.size(); ++i)
    if (indices[i] >= most)
      return invalid("index " + std::to_string(indices[i]) + " of " + std::to_string(most) +
                     " prepared pairs, as number " + std::to_string(i) + " of the list");
  return post_each(
      prepared, indices.size(), [&](std::size_t i) { return indices[i]; }, options);
}

Submission::Submitted Submission::post(const PreparedState& prepared,
                                       std::span<const std::uint32_t> subset,
                                       const TransferOptions& options) const {
  auto transfer = base::make_recycled<TransferState>();
  TransferBatches& batches = transfer->batches;
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
      if (prepared.uniform())
        batches.own = *std::move(made);
      else
        batches.add(*std::move(made), prepared.pairs.size());
    }
    if (prepared.uniform()) break;  // the other pairs have the same lists
    batches.by_pair.push_back({.plan = &batches.others.back()});
  }
  const auto size_of = [&](const PreparedPair& pair) {
    const std::uint64_t page = pair.shape->pages->page_bytes;
    return transport::BatchSummary{.blocks = page == 0 ? 0 : subset.size(),
                                   .bytes = page * subset.size()};
  };
  auto size = use(
      *transfer, prepared, prepared.pairs.size(), [](std::size_t i) { return i; }, size_of,
      options);
  if (!size.ok()) return size.status();
  transfer->by_user.allowed = true;
  return released(start(std::move(transfer), *size, options));
}

}  // namespace linkspan::engine
