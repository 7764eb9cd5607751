#include "tools/linkspan/pair_run.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr Duration kTransferDeadline = 10s;
constexpr Duration kQuietIn = 5s;    // after its deadline
constexpr Duration kAnswerIn = 20s;  // it fills or compares 1 GiB in 1 s

/// As the source and the destination of a transfer see it.
struct Span {
  std::uint64_t from, to, bytes;
};
/// By ascending destination; what lies between, before and behind is watched.
constexpr std::array kSpans = {Span{3'000'001, 101, 1}, Span{17, 8'191, 4'097},
                               Span{65'537, (1u << 20) + 3, (1u << 20) + 7}};

/// The smallest value that `part` of all do not exceed. In us.
double quantile(std::vector<Duration>& values, double part) {
  const auto rank = std::ceil(part * static_cast<double>(values.size()));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::max(rank, 1.0)) - 1;
  std::nth_element(values.begin(), at, values.end());
  return static_cast<double>(at->count()) / 1e3;
}

Timing timing_of(std::vector<Duration>& runs) {
  if (runs.empty()) return {};
  return {.p50 = quantile(runs, 0.5),
          .p99 = quantile(runs, 0.99),
          .runs = static_cast<unsigned>(runs.size())};
}

Block block_of(Op op, const Span& span) {
  if (op == Op::write) return {span.from, span.to, span.bytes};
  return {span.to, span.from, span.bytes};
}

/// One for each transfer of a run, side by side: what is under way at once never overlaps.
std::vector<Block> blocks_of(const RunPlan& plan) {
  std::vector<Block> out;
  out.reserve(plan.depth);
  for (std::uint64_t i = 0; i < plan.depth; ++i)
    out.push_back({i * plan.bytes, i * plan.bytes, plan.bytes});
  return out;
}

}  // namespace

Row PairRun::run(const Pair& pair, const RunPlan& plan, const Status& before) {
  Row out{.from = pair.from().name(),
          .to = pair.to().name(),
          .op = pair.op,
          .bytes = plan.bytes,
          .depth = plan.depth,
          .latency = plan.latency};
  const auto why = explain(pair, plan.bytes);
  out.status = before.ok() ? why.status() : before;
  if (why.ok()) {
    out.path = why->path;
    out.executor = why->executor;
    if (!why->refused.empty())
      out.refused = why->refused.front().path + ": " + why->refused.front().reason;
  }
  if (out.status.ok() && plan.verify) {
    out.status = verify_whole(pair, plan);
    out.verified = out.status.ok();
  }
  if (out.status.ok()) out.status = note(measure(pair, plan, out));
  return out;
}

Result<Explanation> PairRun::explain(const Pair& pair, std::uint64_t bytes) const {
  return both_.peer().explain(pair.op, pair.local.region(), pair.far.region, 1, bytes);
}

Status PairRun::verify_blocks(const Pair& pair) { return note(verify_spans(pair)); }

Status PairRun::verify_spans(const Pair& pair) {
  const std::uint64_t sent = ++seed_, before = ++seed_;
  if (Status s = fill(pair, true, 0, kLeastRegion, sent, 0); !s.ok()) return s;
  if (Status s = fill(pair, false, 0, kLeastRegion, before, 0); !s.ok()) return s;
  std::array<Block, kSpans.size()> blocks{};
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = block_of(pair.op, kSpans[i]);
  if (const auto took = transfer(pair, blocks, 1); !took.ok()) return took.status();
  std::uint64_t checked = 0;
  for (const Span& span : kSpans) {
    if (Status s = check(pair, checked, span.to - checked, before, checked); !s.ok()) return s;
    if (Status s = check(pair, span.to, span.bytes, sent, span.from); !s.ok()) return s;
    checked = span.to + span.bytes;
  }
  return check(pair, checked, kLeastRegion - checked, before, checked);
}

Status PairRun::verify_whole(const Pair& pair, const RunPlan& plan) {
  const std::uint64_t sent = ++seed_, all = plan.bytes * plan.depth;
  if (Status s = fill(pair, true, 0, all, sent, 0); !s.ok()) return note(s);
  if (const auto took = transfer(pair, blocks_of(plan), plan.depth); !took.ok())
    return note(took.status());
  return note(check(pair, 0, all, sent, 0));
}

/// Blocks of runs: the library's, the bare call's, the library's, ... The first of each is the
/// warm-up and does not count.
Status PairRun::measure(const Pair& pair, const RunPlan& plan, Row& out) {
  std::optional<Ceiling> ceiling;
  if (plan.ceiling) {
    auto made = both_.ceilings().make(pair.op, pair.local, pair.far, out.path);
    if (!made.ok()) return made.status();
    out.ceiling_how = made->how();
    ceiling.emplace(*std::move(made));
  }
  const std::vector<Block> blocks = blocks_of(plan);
  std::vector<Duration> ours, bare;
  ours.reserve(plan.runs);
  bare.reserve(plan.runs);
  const auto end = base::Deadline::after(base::Clock::steady(), plan.at_most);
  for (bool warm = false; ours.size() < plan.runs && (ours.empty() || !end.passed()); warm = true) {
    const std::size_t count = std::min<std::size_t>(plan.block, plan.runs - ours.size());
    for (std::size_t i = 0; i < count; ++i) {
      const auto took = transfer(pair, blocks, plan.depth);
      if (!took.ok()) return took.status();
      if (warm) ours.push_back(*took);
    }
    for (std::size_t i = 0; ceiling && i < count; ++i) {
      const auto least = ceiling->run(plan.bytes, plan.depth);
      if (!least.ok()) return least.status();
      if (warm) bare.push_back(*least);
    }
  }
  out.ours = timing_of(ours);
  out.bare = timing_of(bare);
  return {};
}

/// A lost peer is lost for all that comes after.
Status PairRun::note(Status status) {
  if (status.code() == Code::disconnected && lost_.ok()) {
    const auto answer = both_.child().ask("hello", kAnswerIn);  // which tells how it ended
    lost_ = answer.ok() ? status : answer.status();
  }
  return status;
}

Result<Duration> PairRun::transfer(const Pair& pair, std::span<const Block> blocks,
                                   unsigned transfers) {
  if (deadline_.passed()) return Status(Code::timed_out, Scope::request, kTimeIsOver);
  const Peer& peer = both_.peer();
  const TransferOptions options{.deadline = kTransferDeadline};
  under_way_.clear();
  under_way_.reserve(transfers);
  const std::size_t each = blocks.size() / transfers;
  Status status;
  const auto begin = base::Clock::steady().now();
  for (unsigned i = 0; i < transfers && status.ok(); ++i) {
    const auto part = blocks.subspan(i * each, each);
    auto moved = pair.to_far() ? peer.write(pair.local.region(), pair.far.region, part, options)
                               : peer.read(pair.local.region(), pair.far.region, part, options);
    if (moved.ok())
      under_way_.push_back(*std::move(moved));
    else
      status = moved.status();
  }
  for (const Transfer& moved : under_way_) {
    Status end = moved.wait(kTransferDeadline + kQuietIn);
    if (!moved.done()) lost_ = end;
    if (status.ok()) status = std::move(end);
  }
  const Duration took = base::Clock::steady().now() - begin;
  if (!status.ok()) return status;
  return took;
}

Status PairRun::fill(const Pair& pair, bool source, std::uint64_t offset, std::uint64_t bytes,
                     std::uint64_t seed, std::uint64_t from) {
  if (source == pair.to_far()) return pair.local.fill(offset, bytes, seed, from);
  return ask("fill", pair, offset, bytes, seed, from);
}

Status PairRun::check(const Pair& pair, std::uint64_t offset, std::uint64_t bytes,
                      std::uint64_t seed, std::uint64_t from) {
  if (!pair.to_far()) return pair.local.check(offset, bytes, seed, from);
  return ask("check", pair, offset, bytes, seed, from);
}

Status PairRun::ask(const char* verb, const Pair& pair, std::uint64_t offset, std::uint64_t bytes,
                    std::uint64_t seed, std::uint64_t from) {
  std::string request = std::string(verb) + ' ' + pair.far.place.name();
  for (const std::uint64_t number : {offset, bytes, seed, from})
    request += ' ' + std::to_string(number);
  const auto answer = both_.child().ask(request, kAnswerIn);
  if (both_.child().lost()) lost_ = answer.status();
  return answer.status();
}

}  // namespace linkspan::tool
