#include "tools/linkspan/bench/notify_run.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "tools/linkspan/measure/turns.hpp"
#include "tools/linkspan/pair/answering.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr Duration kPatience = 10s;
constexpr Duration kAnswerIn = 2 * kPatience;  // the child's own patience is kPatience
constexpr std::array kWord = {std::byte{1}};   // of a notification
constexpr std::uint64_t kThere = 0, kBack = 8192, kBareThere = 16384, kBareBack = 24576;
static_assert(kBareBack + kMessageArea <= kMinRegion);

constexpr std::uint64_t kSentSeed = 1'000'001, kBackSeed = 1'000'002;  // of no one else

}  // namespace

Row NotifyRun::run(const Pair& pair, const RunPlan& plan) {
  Row out = plan.row(pair.op, pair.from(), pair.to());
  const auto why = both_.peer().explain(pair.op, pair.local.region(), pair.far.region, 1,
                                        plan.shape.bytes, {.low_latency = plan.low_latency});
  out.status = why.status();
  if (!why.ok()) return out;
  out.path = why->path;
  out.executor = why->executor;
  out.status = measure(pair, plan, out);
  if (told_) (void)answer();  // of a turn that failed
  return out;
}

Status NotifyRun::measure(const Pair& pair, const RunPlan& plan, Row& out) {
  const std::uint64_t bytes = plan.shape.bytes;
  const Place near = pair.local.place(), far = pair.far.place;
  if (Status s = both_.engine().publish(near.name(), pair.local.region()); !s.ok()) return s;
  if (Status s = tell(far_request("meet", near, {})); !s.ok()) return s;
  if (Status s = answer(); !s.ok()) return s;
  if (Status s = pair.local.fill(kThere, kMessageArea, kSentSeed, 0); !s.ok()) return s;
  if (Status s = tell(far_request("fill", far, {kBack, kMessageArea, kBackSeed, 0})); !s.ok())
    return s;
  if (Status s = answer(); !s.ok()) return s;

  std::vector<Contender> contenders{by_library(pair, bytes, plan.low_latency)};
  if (plan.ceiling) {
    auto bare = by_bare_code(pair, bytes);
    if (!bare.ok()) return bare.status();
    contenders.push_back(*std::move(bare));
  }
  auto runs = take_turns({plan.runs, plan.block, plan.at_most}, contenders);
  if (!runs.ok()) return runs.status();

  if (plan.verify) {
    const std::uint64_t written = std::min(plan.block * bytes, kMessageArea);
    if (Status s = tell(far_request("check", far, {kThere, written, kSentSeed, 0})); !s.ok())
      return s;
    if (Status s = answer(); !s.ok()) return s;
    if (Status s = pair.local.check(kBack, written, kBackSeed, 0); !s.ok()) return s;
  }
  out.verified = plan.verify;
  out.ours = timing_of(std::move(runs->front()));
  compare(contenders, *std::move(runs), out);
  return {};
}

Contender NotifyRun::by_library(const Pair& pair, std::uint64_t bytes, bool low_latency) {
  return {.run = [=, this, &pair] { return round(pair, bytes, low_latency, round_++); },
          .begin =
              [=, this, &pair](unsigned runs) {
                round_ = 0;
                return tell(far_request("echo", pair.far.place,
                                        {runs, kBack, bytes, low_latency ? 1u : 0u}));
              },
          .end = [this] { return answer(); }};
}

Result<Duration> NotifyRun::round(const Pair& pair, std::uint64_t bytes, bool low_latency,
                                  std::uint64_t i) {
  const std::uint64_t at = message_offset(kThere, bytes, i);
  const Block block{at, at, bytes};
  const TransferOptions options{
      .deadline = kPatience, .notification = kWord, .low_latency = low_latency};
  const auto begin = base::Clock::steady().now();
  const auto sent = both_.peer().write(pair.local.region(), pair.far.region, {&block, 1}, options);
  if (!sent.ok()) return sent.status();
  if (Status s = await_notification(both_.engine()); !s.ok()) return s;
  const Duration took = (base::Clock::steady().now() - begin) / 2;
  if (Status s = sent->wait(kPatience); !s.ok()) return s;
  return took;
}

Result<Contender> NotifyRun::by_bare_code(const Pair& pair, std::uint64_t bytes) {
  struct Side {
    std::unique_ptr<SharedPage> page;
    std::shared_ptr<const Route> route;
    std::unique_ptr<bare::Ping> ping;
  };
  auto side = std::make_shared<Side>();  // the contender's, which may be copied
  auto page = SharedPage::create();
  if (!page.ok()) return page.status();
  side->page = *std::move(page);
  auto route = both_.ceilings().route(pair, pair.local.place());
  if (!route.ok()) return route.status();
  side->route = std::make_shared<const Route>(*std::move(route));
  auto ping = bare::Ping::create(*side->route->device, side->page->data(), 0);
  if (!ping.ok()) return ping.status();
  side->ping = *std::move(ping);
  const auto ours = FarMemory::of(pair.local);
  if (!ours.ok()) return ours.status();
  if (Status s =
          tell("ping " + side->page->path() + ' ' + pair.far.place.name() + ' ' + ours->encode());
      !s.ok())
    return s;
  if (Status s = answer(); !s.ok()) return s;
  return Contender{.how = "cuMemcpyAsync + flag in memory of both processes, and the same back",
                   .run = [=, this]() -> Result<Duration> {
                     const std::uint64_t at = message_offset(kBareThere, bytes, round_++);
                     return side->ping->round(side->route->to + at, side->route->from + at, bytes,
                                              kPatience);
                   },
                   .begin =
                       [=, this](unsigned runs) {
                         round_ = 0;
                         return tell("pong " + std::to_string(runs) + ' ' +
                                     std::to_string(kBareBack) + ' ' + std::to_string(bytes));
                       },
                   .end = [this] { return answer(); }};
}

Status NotifyRun::tell(const std::string& request) {
  Status told = both_.far_side().tell(request);
  told_ = told.ok();
  if (both_.far_side().lost()) lost_ = told;
  return told;
}

Status NotifyRun::answer() {
  told_ = false;
  const auto answer = both_.far_side().answer(kAnswerIn);
  if (both_.far_side().lost()) lost_ = answer.status();
  return answer.status();
}

}  // namespace linkspan::tool
