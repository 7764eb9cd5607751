// Submission: transfers between several pairs of regions.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/transfers/submission.hpp"

namespace linkspan::engine {
namespace {

constexpr std::size_t kMaxPairs = 65536;

/// Returns true if a plan that was made for one pair is good for the other.
bool are_alike(const TransferEndpoints& a, const TransferEndpoints& b) {
  return a.transport == b.transport && a.local->region().bytes() == b.local->region().bytes() &&
         a.remote->bytes == b.remote->bytes &&
         a.remote->mappings[a.transport]->bytes() == b.remote->mappings[b.transport]->bytes();
}

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

/// Finds, checks and plans a pair. The plan is that of the pair before if both are alike.
Result<TransferEndpoints> Submission::plan_next(std::uint64_t peer, Op op, const Pair& pair,
                                                bool same_shape, const TransferOptions& options,
                                                PlannedBefore& before) const {
  auto between = resolve(peer, op, pair.local, pair.remote);
  if (!between.ok()) return between.status();
  if (Status status = check_permission(*between); !status.ok()) return status;
  if (same_shape && options.require.empty() && are_alike(*before.between, *between)) return between;
  auto planned = plan(*between, pair.shape, options);
  if (!planned.ok()) return planned.status();
  before.size = planned->size;
  before.plan = base::make_recycled<Plan>();
  *before.plan = std::move(planned->plan);
  return between;
}

Submission::Submitted Submission::submit(std::uint64_t peer, Op op, std::span<const Pair> pairs,
                                         const TransferOptions& options) const {
  if (Status status = check_count(pairs.size()); !status.ok()) return status;
  auto transfer = base::make_recycled<TransferState>();
  transfer->batches.more.reserve(pairs.size() - 1);
  PlannedBefore before;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const bool same_shape = i != 0 && are_same(pairs[i].shape, pairs[i - 1].shape);
    auto between = plan_next(peer, op, pairs[i], same_shape, options, before);
    if (!between.ok()) return status_of_pair(i, between.status());
    before.plan->keep();  // the lists are the user's
    before.between = &transfer->add({*std::move(between), before.plan});
    if (Status status = add_size(before.total, before.size); !status.ok()) return status;
  }
  return released(start(std::move(transfer), before.total, options));
}

}  // namespace linkspan::engine
