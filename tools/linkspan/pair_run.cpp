#include "tools/linkspan/pair_run.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr Duration kTransferDeadline = 10s;
constexpr Duration kQuietIn = 5s;    // after its deadline
constexpr Duration kAnswerIn = 20s;  // it fills or compares 1 GiB in 1 s
constexpr unsigned kRates = 5;       // turns of library and bare call
constexpr unsigned kLatencyTurns = 10, kLatencyRuns = 100;
constexpr Duration kLatencyAtMost = 2s;  // of the library; then fewer turns
constexpr std::uint64_t kSmall = 8;

/// As the source and the destination of a transfer see it.
struct Span {
  std::uint64_t from, to, bytes;
};
/// By ascending destination; what lies between, before and behind is watched.
constexpr std::array kSpans = {Span{3'000'001, 101, 1}, Span{17, 8'191, 4'097},
                               Span{65'537, (1u << 20) + 3, (1u << 20) + 7}};

template <class T>
T median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double gbps(std::uint64_t bytes, Duration took) {
  return static_cast<double>(bytes) / static_cast<double>(std::max<Duration::rep>(1, took.count()));
}

double microseconds(Duration took) { return static_cast<double>(took.count()) / 1e3; }

Block block_of(Op op, const Span& span) {
  if (op == Op::write) return {span.from, span.to, span.bytes};
  return {span.to, span.from, span.bytes};
}

}  // namespace

PairReport PairRun::run(Op op, Memory& local, const Far& far, std::uint64_t bytes) {
  const Pair pair{.op = op, .local = local, .far = far};
  PairReport out;
  out.from = pair.to_far() ? local.place().name() : far.place.name();
  out.to = pair.to_far() ? far.place.name() : local.place().name();
  out.op = op;
  out.bytes = bytes;
  out.status = explain(pair, out);
  if (out.status.ok()) out.status = verify_blocks(pair);
  if (out.status.ok()) out.status = verify_whole(pair, bytes);
  if (out.status.ok()) out.status = measure(pair, out);
  if (out.status.code() == Code::disconnected && lost_.ok()) {
    const auto answer = child_.ask("hello", kAnswerIn);  // which tells how it ended
    lost_ = answer.ok() ? out.status : answer.status();
  }
  return out;
}

Status PairRun::explain(const Pair& pair, PairReport& out) {
  auto why = peer_.explain(pair.op, pair.local.region(), pair.far.region, 1, out.bytes);
  if (!why.ok()) return why.status();
  out.path = why->path;
  out.executor = why->executor;
  if (!why->refused.empty())
    out.refused = why->refused.front().path + ": " + why->refused.front().reason;
  return {};
}

Status PairRun::verify_blocks(const Pair& pair) {
  const std::uint64_t sent = ++seed_, before = ++seed_;
  if (Status s = fill(pair, true, 0, kLeastRegion, sent, 0); !s.ok()) return s;
  if (Status s = fill(pair, false, 0, kLeastRegion, before, 0); !s.ok()) return s;
  std::array<Block, kSpans.size()> blocks{};
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = block_of(pair.op, kSpans[i]);
  if (const auto took = transfer(pair, blocks); !took.ok()) return took.status();
  std::uint64_t checked = 0;
  for (const Span& span : kSpans) {
    if (Status s = check(pair, checked, span.to - checked, before, checked); !s.ok()) return s;
    if (Status s = check(pair, span.to, span.bytes, sent, span.from); !s.ok()) return s;
    checked = span.to + span.bytes;
  }
  return check(pair, checked, kLeastRegion - checked, before, checked);
}

/// Also the warm-up of what is measured next.
Status PairRun::verify_whole(const Pair& pair, std::uint64_t bytes) {
  const std::uint64_t sent = ++seed_;
  if (Status s = fill(pair, true, 0, bytes, sent, 0); !s.ok()) return s;
  const Block whole{.bytes = bytes};
  if (const auto took = transfer(pair, {&whole, 1}); !took.ok()) return took.status();
  return check(pair, 0, bytes, sent, 0);
}

Status PairRun::measure(const Pair& pair, PairReport& out) {
  auto ceiling = ceilings_.make(pair.op, pair.local, pair.far, out.path);
  if (!ceiling.ok()) return ceiling.status();
  out.ceiling_how = ceiling->how();
  if (Status s = measure_rate(pair, *ceiling, out); !s.ok()) return s;
  return measure_latency(pair, *ceiling, out);
}

Status PairRun::measure_rate(const Pair& pair, Ceiling& ceiling, PairReport& out) {
  const Block whole{.bytes = out.bytes};
  if (const auto warm = ceiling.run(out.bytes); !warm.ok()) return warm.status();
  std::vector<Duration> ours, bare;
  for (unsigned i = 0; i < kRates; ++i) {
    const auto took = transfer(pair, {&whole, 1});
    if (!took.ok()) return took.status();
    const auto least = ceiling.run(out.bytes);
    if (!least.ok()) return least.status();
    ours.push_back(*took);
    bare.push_back(*least);
  }
  out.rate = {.value = gbps(out.bytes, median(ours)),
              .bare = gbps(out.bytes, median(bare)),
              .runs = kRates};
  return {};
}

Status PairRun::measure_latency(const Pair& pair, Ceiling& ceiling, PairReport& out) {
  const Block small{.bytes = kSmall};
  const auto end = base::Deadline::after(base::Clock::steady(), kLatencyAtMost);
  std::vector<Duration> ours, bare;
  unsigned turns = 0;
  while (turns < kLatencyTurns && !(turns > 0 && end.passed())) {
    ++turns;
    for (unsigned i = 0; i < kLatencyRuns; ++i) {
      const auto took = transfer(pair, {&small, 1});
      if (!took.ok()) return took.status();
      ours.push_back(*took);
    }
    for (unsigned i = 0; i < kLatencyRuns; ++i) {
      const auto least = ceiling.run(kSmall);
      if (!least.ok()) return least.status();
      bare.push_back(*least);
    }
  }
  out.latency = {
      .value = microseconds(median(ours)), .bare = microseconds(median(bare)), .runs = turns};
  return {};
}

Result<Duration> PairRun::transfer(const Pair& pair, std::span<const Block> blocks) {
  if (deadline_.passed())
    return Status(Code::timed_out, Scope::request, "the demo's own time is over");
  const auto begin = base::Clock::steady().now();
  const TransferOptions options{.deadline = kTransferDeadline};
  auto moved = pair.to_far() ? peer_.write(pair.local.region(), pair.far.region, blocks, options)
                             : peer_.read(pair.local.region(), pair.far.region, blocks, options);
  if (!moved.ok()) return moved.status();
  const Status status = moved->wait(kTransferDeadline + kQuietIn);
  const Duration took = base::Clock::steady().now() - begin;
  if (!moved->done()) lost_ = status;
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
  const auto answer = child_.ask(request, kAnswerIn);
  if (child_.lost()) lost_ = answer.status();
  return answer.status();
}

}  // namespace linkspan::tool
