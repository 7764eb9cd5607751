// Submission: transfers between several pairs of regions.
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

/// Returns a plan that does not need the user's lists.
std::shared_ptr<const Plan> kept(Plan plan) {
  auto shared = std::make_shared<Plan>(std::move(plan));
  shared->keep();
  return shared;
}

}  // namespace

Submission::Submitted Submission::submit(std::uint64_t peer, Op op, std::span<const Pair> pairs,
                                         const TransferOptions& options) const {
  const auto refuse = [](std::string what) {
    return Status(Code::invalid_argument, Scope::request, std::move(what));
  };
  if (pairs.empty()) return refuse("no pair of regions was given");
  if (pairs.size() > kMaxPairs)
    return refuse(std::to_string(pairs.size()) + " pairs of regions in one transfer; at most " +
                  std::to_string(kMaxPairs));
  auto transfer = base::make_recycled<TransferState>();
  std::vector<PlannedPair>& more = transfer->batches.more;
  more.reserve(pairs.size() - 1);
  transport::BatchSummary total, size;  // of all pairs; of one
  std::shared_ptr<const Plan> plan;     // of the pair before, unless that is the first
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    auto between = resolve(peer, op, pairs[i].local, pairs[i].remote);
    if (!between.ok()) return status_of_pair(i, between.status());
    if (Status status = check_permission(*between); !status.ok()) return status_of_pair(i, status);
    const TransferEndpoints& first = *transfer;
    const TransferEndpoints& before = more.empty() ? first : more.back();
    const bool alike = i != 0 && options.require.empty() &&
                       &pairs[i].shape == &pairs[i - 1].shape && are_alike(before, *between);
    if (!alike) {
      auto planned = this->plan(*between, pairs[i].shape, options);
      if (!planned.ok()) return status_of_pair(i, planned.status());
      size = planned->size;
      if (i == 0)
        transfer->batches.own = std::move(planned->plan);
      else
        plan = kept(std::move(planned->plan));
    } else if (more.empty()) {
      plan = kept(transfer->batches.own);
    }
    if (i == 0)
      static_cast<TransferEndpoints&>(*transfer) = *std::move(between);
    else
      more.push_back({*std::move(between), plan});
    total.blocks += size.blocks;
    if (__builtin_add_overflow(total.bytes, size.bytes, &total.bytes))
      return refuse("the pairs of regions have more bytes than a number of 64 bits counts");
  }
  return released(start(std::move(transfer), total, options));
}

}  // namespace linkspan::engine
