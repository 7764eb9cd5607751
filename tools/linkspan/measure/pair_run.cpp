#include "tools/linkspan/measure/pair_run.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "tools/linkspan/measure/alternation.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr Duration kTransferDeadline = 10s;
constexpr Duration kQuietTimeout = 5s;   // added to the deadline
constexpr Duration kReplyTimeout = 60s;  // the other side fills or compares 1 GiB in 1 to 3 s

/// One block, by its offsets in source and destination.
struct Span {
  std::uint64_t from, to, bytes;
};
/// In the order of destinations. The bytes before, between and after them must not change.
constexpr std::array kSpans = {Span{3'000'001, 101, 1}, Span{17, 8'191, 4'097},
                               Span{65'537, (1u << 20) + 3, (1u << 20) + 7}};

Block block_of(Op op, std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
  return op == Op::write ? Block{from, to, bytes} : Block{to, from, bytes};
}

Pages pages_of(Op op, std::uint64_t base, const Layout& layout) {
  const bool write = op == Op::write;
  return {.page_bytes = layout.page_bytes,
          .local_base = base,
          .remote_base = base,
          .local_index = write ? layout.from_index : layout.to_index,
          .remote_index = write ? layout.to_index : layout.from_index};
}

}  // namespace

Row RunPlan::row(Op op, Place from, Place to) const {
  return {.from = from.name(),
          .to = to.name(),
          .op = op,
          .shape = shape.name(),
          .label = label,
          .suffix = suffix,
          .bytes = shape.bytes,
          .depth = depth,
          .latency = latency,
          .bar = bar};
}

Row PairRun::run(std::span<const Pair> pairs, const RunPlan& plan, const Status& before) {
  const Pair& pair = pairs.front();
  const Layout layout = Layout::of(plan.shape);
  Row out = plan.row(pair.op, pair.from(), pair.to());
  out.bytes = layout.payload * pairs.size();
  const auto why =
      explain(pair, layout.payload, layout.pieces.size(), {.low_latency = plan.low_latency});
  out.status = before.ok() ? why.status() : before;
  if (why.ok()) {
    out.path = why->path;
    out.executor = why->executor;
    if (!why->refused.empty())
      out.refused = why->refused.front().path + ": " + why->refused.front().reason;
  }
  if (out.status.ok()) out.status = record(measure(pairs, plan, layout, out));
  return out;
}

Result<Explanation> PairRun::explain(const Pair& pair, std::uint64_t bytes, std::uint64_t blocks,
                                     const TransferOptions& options) const {
  return both_.peer().explain(pair.op, pair.local.region(), pair.remote.region, blocks, bytes,
                              options);
}

Status PairRun::verify_blocks(const Pair& pair) { return record(verify_spans(pair)); }

Status PairRun::verify_spans(const Pair& pair) {
  const std::uint64_t sent = ++seed_, before = ++seed_;
  if (Status s = fill(pair, true, 0, kMinRegion, sent, 0); !s.ok()) return s;
  if (Status s = fill(pair, false, 0, kMinRegion, before, 0); !s.ok()) return s;
  Submission spans{.pair = &pair};
  for (const Span& span : kSpans)
    spans.blocks.push_back(block_of(pair.op, span.from, span.to, span.bytes));
  if (const auto took = transfer({&spans, 1}); !took.ok()) return took.status();
  std::uint64_t checked = 0;
  for (const Span& span : kSpans) {
    if (Status s = check(pair, checked, span.to - checked, before, checked); !s.ok()) return s;
    if (Status s = check(pair, span.to, span.bytes, sent, span.from); !s.ok()) return s;
    checked = span.to + span.bytes;
  }
  return check(pair, checked, kMinRegion - checked, before, checked);
}

/// Returns `depth` submissions for each pair. Their memories never overlap.
std::vector<PairRun::Submission> PairRun::submissions_of(std::span<const Pair> pairs,
                                                         const Layout& layout, unsigned depth) {
  std::vector<Submission> out;
  for (const Pair& pair : pairs) {
    for (unsigned i = 0; i < depth; ++i) {
      Submission one{.pair = &pair, .base = i * layout.extent};
      if (layout.page_bytes != 0) {
        one.pages = pages_of(pair.op, one.base, layout);
      } else {
        one.blocks.reserve(layout.pieces.size());
        for (const auto& [from, to, bytes] : layout.pieces)
          one.blocks.push_back(block_of(pair.op, one.base + from, one.base + to, bytes));
      }
      out.push_back(std::move(one));
    }
  }
  return out;
}

Status PairRun::prepare(std::span<Submission> all) const {
  for (Submission& one : all) {
    const auto& [pair, base, blocks, pages, ready] = one;
    const Region& local = pair->local.region();
    auto made = pages.page_bytes != 0
                    ? both_.peer().prepare(pair->op, local, pair->remote.region, pages)
                    : both_.peer().prepare(pair->op, local, pair->remote.region, std::span(blocks));
    if (!made.ok()) return made.status();
    one.ready = *std::move(made);
  }
  return {};
}

Result<cuda::DeviceBuffer> PairRun::put_on_gpu(std::span<Submission> all) {
  const cuda::Device* const device = all.front().pair->local.device();
  if (device == nullptr || all.front().pages.page_bytes == 0)
    return Status(Code::invalid_argument, Scope::request,
                  "indices on a GPU are those of pages, and of a GPU of the first process");
  auto scope = device->enter();
  if (!scope.ok()) return scope.status();
  std::vector<std::uint32_t> lists;
  for (const Submission& one : all) {
    lists.insert(lists.end(), one.pages.local_index.begin(), one.pages.local_index.end());
    lists.insert(lists.end(), one.pages.remote_index.begin(), one.pages.remote_index.end());
  }
  const std::size_t bytes = lists.size() * sizeof lists[0];
  auto staged = cuda::PinnedBuffer::create(*scope, bytes);
  if (!staged.ok()) return staged.status();
  std::memcpy(staged->data(), lists.data(), bytes);
  auto memory = cuda::DeviceBuffer::create(*scope, bytes);
  if (!memory.ok()) return memory.status();
  auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  Status status = stream->copy(*scope, memory->address(), staged->device_address(), bytes);
  if (status.ok()) status = stream->synchronize(*scope);
  if (!status.ok()) return status;
  const auto* at =  // NOLINTNEXTLINE(performance-no-int-to-ptr)
      reinterpret_cast<const std::uint32_t*>(memory->address());
  for (Submission& one : all) {
    for (auto* list : {&one.pages.local_index, &one.pages.remote_index}) {
      *list = {at, list->size()};
      at += list->size();
    }
    one.pages.indices_on_gpu = true;
  }
  return *std::move(memory);
}

Result<Duration> PairRun::verified(const Contestant& contestant, std::span<const Submission> all,
                                   const Shape& shape, const Layout& layout) {
  // Two seeds each, so that bytes in another region show.
  const std::uint64_t seeds = seed_ + 1;
  seed_ += 2 * all.size();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [pair, base, blocks, pages, ready] = all[i];
    const std::uint64_t sent = seeds + 2 * i, before = sent + 1;
    if (Status s = fill(*pair, true, base, layout.extent, sent, base); !s.ok()) return s;
    if (!layout.gaps()) continue;
    if (Status s = fill(*pair, false, base, layout.extent, before, base); !s.ok()) return s;
  }
  auto took = contestant.run();
  if (!took.ok()) return took;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [pair, base, blocks, pages, ready] = all[i];
    const std::uint64_t sent = seeds + 2 * i, before = sent + 1;
    Status arrived =
        pair->to_remote()
            ? call(target_request("arrived", pair->remote.place, {base, sent, before}) + ' ' +
                   shape.encode())
            : pair->local.check(base, layout.tiles(base, sent, before));
    if (!arrived.ok()) return arrived;
  }
  return took;
}

Status PairRun::measure(std::span<const Pair> pairs, const RunPlan& plan, const Layout& layout,
                        Row& out) {
  std::vector<Submission> all = submissions_of(pairs, layout, plan.depth);
  if (plan.prepared || plan.captured)
    if (Status s = prepare(all); !s.ok()) return s;
  std::optional<cuda::DeviceBuffer> lists;
  if (plan.gpu_indices) {
    auto made = put_on_gpu(all);
    if (!made.ok()) return made.status();
    lists = *std::move(made);
  }
  std::vector<Contestant> contestants(1);
  contestants.front() = {.run = [&] { return transfer(all, plan.low_latency, plan.checksum); },
                         .same_bytes = true};
  const bool regions = plan.shape.regions != 1;
  if (regions) contestants.front().run = over_regions(all, plan.parts);
  if (plan.captured) {
    auto made = launches(all.front());
    if (!made.ok()) return made.status();
    contestants.front().run = *std::move(made);
  }
  if (plan.ceiling) {
    const Against against = plan.captured   ? Against::captured
                            : plan.prepared ? Against::ready
                                            : plan.against;
    ReferenceCopies& copies = both_.reference_copies();
    auto bare = regions ? copies.over_regions(pairs, layout)
                        : copies.make(pairs.front(), layout, plan.depth, against, out.path);
    if (!bare.ok()) return bare.status();
    std::move(bare->begin(), bare->end(), std::back_inserter(contestants));
    if (!regions && pairs.size() == 2) {
      bare = both_.reference_copies().both_ways(pairs, layout.payload);
      if (!bare.ok()) return bare.status();
      std::move(bare->begin(), bare->end(), std::back_inserter(contestants));
    }
  }
  for (const Contestant& one : contestants) {
    if (!plan.verify || !one.same_bytes) continue;
    const bool ours = &one == &contestants.front();
    // A bare call is between the first pair only, except over regions.
    const auto moved = ours || regions ? std::span(all) : std::span(all).first(plan.depth);
    const auto took = verified(one, moved, plan.shape, layout);
    if (!took.ok() && ours) return took.status();
    if (!took.ok())
      return Status(took.status().code(), Scope::request, "bare code: " + took.status().what());
  }
  const bool last = plan.verify && plan.runs > 1;  // is the run of which each byte is checked
  auto runs =
      run_alternating({last ? plan.runs - 1 : plan.runs, plan.block, plan.at_most}, contestants);
  if (!runs.ok()) return runs.status();
  if (last) {
    const auto took = verified(contestants.front(), all, plan.shape, layout);
    if (!took.ok()) return took.status();
    runs->front().push_back(*took);
  }
  out.verified = plan.verify;
  out.ours = timing_of(std::move(runs->front()));
  compare(contestants, *std::move(runs), out);
  return {};
}

/// Remembers a lost peer, after which no run is possible.
Status PairRun::record(Status status) {
  if (status.code() == Code::disconnected && fatal_error_.ok()) {
    const auto reply =
        both_.remote_target().call("hello", kReplyTimeout);  // the answer has the reason of its end
    fatal_error_ = reply.ok() ? status : reply.status();
  }
  return status;
}

Result<Duration> PairRun::transfer(std::span<const Submission> all, bool low_latency,
                                   bool checksum) {
  const Peer& peer = both_.peer();
  const TransferOptions options{
      .deadline = kTransferDeadline, .low_latency = low_latency, .checksum = checksum};
  const auto submit = [&](const Pair& pair, const auto& what) {
    return pair.to_remote() ? peer.write(pair.local.region(), pair.remote.region, what, options)
                            : peer.read(pair.local.region(), pair.remote.region, what, options);
  };
  return timed(all.size(), [&](std::size_t i) {
    const Submission& one = all[i];
    return one.ready.valid()           ? one.ready.post(options)
           : one.pages.page_bytes != 0 ? submit(*one.pair, one.pages)
                                       : submit(*one.pair, std::span(one.blocks));
  });
}

std::function<Result<Duration>()> PairRun::over_regions(std::span<const Submission> all,
                                                        bool parts) {
  std::vector<Region> local;
  std::vector<RemoteRegion> remote;
  std::vector<TransferPart> each;
  for (const Submission& one : all) {
    local.push_back(one.pair->local.region());
    remote.push_back(one.pair->remote.region);
    if (parts) each.push_back({local.back(), remote.back(), one.pages});
  }
  const bool write = all.front().pair->to_remote();
  return [this, write, local = std::move(local), remote = std::move(remote), each = std::move(each),
          pages = all.front().pages] {
    const Peer& peer = both_.peer();
    const TransferOptions options{.deadline = kTransferDeadline};
    return timed(1, [&](std::size_t) {
      if (!each.empty()) return write ? peer.write(each, options) : peer.read(each, options);
      return write ? peer.write(local, remote, pages, options)
                   : peer.read(local, remote, pages, options);
    });
  };
}

Result<std::function<Result<Duration>()>> PairRun::launches(const Submission& one) {
  struct Captured {
    std::unique_ptr<bare::UserGraph> graph;
    CapturedTransfer post{};
    std::uint64_t launched = 0;
  };
  const cuda::Device* const device = one.pair->local.device();
  if (device == nullptr)
    return Status(Code::invalid_argument, Scope::request, "a post is captured for memory of a GPU");
  auto graph = bare::UserGraph::create(*device);
  if (!graph.ok()) return graph.status();
  const auto captured =
      std::make_shared<Captured>(Captured{*std::move(graph)});  // shared by copies of the function
  const StreamOrder stream{.kind = StreamOrder::Kind::created,
                           .gpu = device->info().uuid,
                           .handle = captured->graph->stream().get()};
  Status status = captured->graph->capture([&](const cuda::DeviceScope&) {
    auto post = one.ready.capture(stream);
    if (!post.ok()) return post.status();
    captured->post = *std::move(post);
    return Status();
  });
  if (!status.ok()) return status;
  return std::function<Result<Duration>()>([captured]() -> Result<Duration> {
    const auto begin = base::Clock::steady().now();
    if (Status s = captured->graph->launch(kLaunches); !s.ok()) return s;
    captured->launched += kLaunches;
    if (Status s = captured->post.wait(captured->launched, kTransferDeadline); !s.ok()) return s;
    return Duration(base::Clock::steady().now() - begin) / kLaunches;
  });
}

template <class Submit>
Result<Duration> PairRun::timed(std::size_t count, const Submit& submit) {
  if (deadline_.passed()) return Status(Code::timed_out, Scope::request, kTimeIsOver);
  under_way_.clear();
  under_way_.reserve(count);
  Status status;
  const auto begin = base::Clock::steady().now();
  for (std::size_t i = 0; i < count; ++i) {
    auto moved = submit(i);
    if (!moved.ok()) {
      status = moved.status();
      break;
    }
    under_way_.push_back(*std::move(moved));
  }
  for (const Transfer& moved : under_way_) {
    Status end = moved.wait(kTransferDeadline + kQuietTimeout);
    if (!moved.done()) fatal_error_ = end;
    if (status.ok()) status = std::move(end);
  }
  const Duration took = base::Clock::steady().now() - begin;
  if (!status.ok()) return status;
  return took;
}

Status PairRun::fill(const Pair& pair, bool source, std::uint64_t offset, std::uint64_t bytes,
                     std::uint64_t seed, std::uint64_t from) {
  if (source == pair.to_remote()) return pair.local.fill(offset, bytes, seed, from);
  return call(target_request("fill", pair.remote.place, {offset, bytes, seed, from}));
}

Status PairRun::check(const Pair& pair, std::uint64_t offset, std::uint64_t bytes,
                      std::uint64_t seed, std::uint64_t from) {
  if (!pair.to_remote()) return pair.local.check(offset, bytes, seed, from);
  return call(target_request("check", pair.remote.place, {offset, bytes, seed, from}));
}

Status PairRun::call(const std::string& request) {
  const auto reply = both_.remote_target().call(request, kReplyTimeout);
  if (both_.remote_target().unusable()) fatal_error_ = reply.status();
  return reply.status();
}

}  // namespace linkspan::tool
