// Submission: transfers between several pairs of regions.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/handle_access.hpp"
#include "engine/transfers/submission.hpp"

namespace linkspan::engine {
namespace {

constexpr std::size_t kMaxPairs = 65536;

/// Checks before any pair is posted what the Endpoint checks when it posts this one.
Status check_permission(const TransferEndpoints& between) {
  const Permissions allowed = between.remote->mappings[between.transport]->permissions();
  if (between.op == Op::write ? allowed.write : allowed.read) return {};
  return {Code::permission_denied, Scope::request,
          std::string("the peer does not permit to ") +
              (between.op == Op::write ? "write to" : "read from") + " \"" + between.remote->name +
              "\""};
}

}  // namespace

/// Returns true if both are one shape, or pages with the same numbers. Lists on a GPU are not read.
bool Submission::are_same(const Shape& a, const Shape& b) {
  if (&a == &b) return true;
  const auto *x = std::get_if<Pages>(&a), *y = std::get_if<Pages>(&b);
  if (x == nullptr || y == nullptr || x->indices_on_gpu || y->indices_on_gpu) return false;
  const auto equal = [](auto one, auto other) {  // mostly the same list
    return one.size() == other.size() &&
           (one.data() == other.data() || std::ranges::equal(one, other));
  };
  return x->page_bytes == y->page_bytes && x->local_base == y->local_base &&
         x->remote_base == y->remote_base && equal(x->local_index, y->local_index) &&
         equal(x->remote_index, y->remote_index);
}

Status Submission::check_count(std::size_t pairs) {
  if (pairs != 0 && pairs <= kMaxPairs) return {};
  return {Code::invalid_argument, Scope::request,
          pairs == 0 ? "no pair of regions was given"
                     : std::to_string(pairs) + " pairs of regions in one transfer; at most " +
                           std::to_string(kMaxPairs)};
}

Status Submission::add_size(transport::BatchSummary& total, const transport::BatchSummary& pair) {
  total.blocks += pair.blocks;
  if (!__builtin_add_overflow(total.bytes, pair.bytes, &total.bytes)) return {};
  return {Code::invalid_argument, Scope::request,
          "the pairs of regions have more bytes than a number of 64 bits counts"};
}

Result<TransferEndpoints> Submission::resolve(std::uint64_t peer, Op op, const Pair& pair,
                                              const TransferOptions& options) const {
  auto between = resolve(peer, op, pair.local, pair.remote);
  if (!between.ok()) return between;
  if (Status status = check_permission(*between); !status.ok()) return status;
  if (options.require.empty()) return between;
  const auto planned = plan(*between, pair.shape, options);  // chooses the transport
  return planned.ok() ? std::move(between) : planned.status();
}

/// Returns the regions of a transfer before, or finds and checks them. A required path decides on
/// the transports, so nothing is kept of a transfer that has one.
Result<AcquiredPairs> Submission::acquire(std::uint64_t peer, Op op, std::span<const Pair> pairs,
                                          const TransferOptions& options) const {
  const bool kept = options.require.empty();
  if (kept) {
    AcquiredPairs found =
        pairs_->find(pairs.size(), [&](std::size_t i, const TransferEndpoints& between) {
          return between.op == op && between.peer == peer &&
                 between.local == HandleAccess::registration(pairs[i].local) &&
                 between.remote == HandleAccess::imported(pairs[i].remote);
        });
    if (found) return found;
  }
  std::vector<TransferEndpoints> all;
  all.reserve(pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    auto between = resolve(peer, op, pairs[i], options);
    if (!between.ok()) return status_of_pair(i, between.status());
    all.push_back(*std::move(between));
  }
  return acquire(std::move(all), kept);
}

Result<AcquiredPairs> Submission::acquire(std::vector<TransferEndpoints> all, bool kept) const {
  AcquiredPairs made = AcquiredPairs::make(std::move(all));
  if (!made) return not_registered();
  if (kept) pairs_->add(AcquiredPairs::share(made.get()));
  return made;
}

/// Plans what is copied between the pairs: once, if one plan is good for all.
Result<transport::BatchSummary> Submission::plan(TransferBatches& batches,
                                                 const RegionPairs& between,
                                                 std::span<const Pair> pairs) const {
  const auto is_as_before = [&](std::size_t i) {
    return i != 0 && are_same(pairs[i].shape, pairs[i - 1].shape);
  };
  bool one = between.alike();
  for (std::size_t i = 1; one && i < pairs.size(); ++i) one = is_as_before(i);
  const auto all = between.all();
  transport::BatchSummary size, total;
  if (one) {
    const std::size_t smallest = between.smallest();
    auto planned = plan(all[smallest], pairs[smallest].shape);
    if (!planned.ok()) return status_of_pair(smallest, planned.status());
    batches.own = std::move(planned->plan);
    size = planned->size;
  } else {
    batches.by_pair.reserve(pairs.size());
  }
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const bool planned_before = is_as_before(i) && all[i].transport == all[i - 1].transport;
    if (!one && !(planned_before && plan_holds(all[i - 1], all[i]))) {
      auto planned = plan(all[i].transport, between.sizes(i), pairs[i].shape);
      if (!planned.ok()) return status_of_pair(i, planned.status());
      size = planned->size;
      if (!planned_before)  // else the plan is the same, and only its check was needed
        batches.add(std::move(planned->plan), pairs.size());
    }
    if (!one) batches.by_pair.push_back({.plan = &batches.others.back()});
    if (Status status = add_size(total, size); !status.ok()) return status;
  }
  return total;
}

Submission::Submitted Submission::submit(std::uint64_t peer, Op op, std::span<const Pair> pairs,
                                         const TransferOptions& options) const {
  if (Status status = check_count(pairs.size()); !status.ok()) return status;
  auto between = acquire(peer, op, pairs, options);
  if (!between.ok()) return between.status();
  auto transfer = base::make_recycled<TransferState>();
  const auto size = plan(transfer->batches, **between, pairs);
  if (!size.ok()) return size.status();
  transfer->use(*std::move(between));
  transfer->by_user.allowed = true;
  return released(start(std::move(transfer), *size, options));
}

}  // namespace linkspan::engine
