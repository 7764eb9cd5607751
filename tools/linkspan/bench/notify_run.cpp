#include "tools/linkspan/bench/notify_run.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "tools/linkspan/measure/alternation.hpp"
#include "tools/linkspan/pair/echo_responder.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr Duration kStepTimeout = 10s;
constexpr Duration kReplyTimeout = 2 * kStepTimeout;  // the helper's own timeout is kStepTimeout
constexpr std::array kNotification = {std::byte{1}};  // message of each notification
constexpr std::uint64_t kOutward = 0, kBack = 8192, kBareOutward = 16384, kBareBack = 24576;
static_assert(kBareBack + kMessageArea <= kMinRegion);

constexpr std::uint64_t kSentSeed = 1'000'001, kBackSeed = 1'000'002;  // used nowhere else

}  // namespace

Row NotifyRun::run(const Pair& pair, const RunPlan& plan) {
  Row out = plan.row(pair.op, pair.from(), pair.to());
  const auto why = both_.peer().explain(pair.op, pair.local.region(), pair.remote.region, 1,
                                        plan.shape.bytes, {.low_latency = plan.low_latency});
  out.status = why.status();
  if (!why.ok()) return out;
  out.path = why->path;
  out.executor = why->executor;
  out.status = measure(pair, plan, out);
  if (reply_pending_) (void)receive_reply();  // the reply of a block that failed
  return out;
}

Status NotifyRun::measure(const Pair& pair, const RunPlan& plan, Row& out) {
  const std::uint64_t bytes = plan.shape.bytes;
  const Place near = pair.local.place(), far = pair.remote.place;
  if (Status s = both_.engine().publish(near.name(), pair.local.region()); !s.ok()) return s;
  if (Status s = send_request(target_request("meet", near, {})); !s.ok()) return s;
  if (Status s = receive_reply(); !s.ok()) return s;
  if (Status s = pair.local.fill(kOutward, kMessageArea, kSentSeed, 0); !s.ok()) return s;
  if (Status s = send_request(target_request("fill", far, {kBack, kMessageArea, kBackSeed, 0}));
      !s.ok())
    return s;
  if (Status s = receive_reply(); !s.ok()) return s;

  std::vector<Contestant> contestants{by_library(pair, bytes, plan.low_latency)};
  if (plan.ceiling) {
    auto bare = by_bare_code(pair, bytes);
    if (!bare.ok()) return bare.status();
    contestants.push_back(*std::move(bare));
  }
  auto runs = run_alternating({plan.runs, plan.block, plan.at_most}, contestants);
  if (!runs.ok()) return runs.status();

  if (plan.verify) {
    const std::uint64_t written = std::min(plan.block * bytes, kMessageArea);
    if (Status s = send_request(target_request("check", far, {kOutward, written, kSentSeed, 0}));
        !s.ok())
      return s;
    if (Status s = receive_reply(); !s.ok()) return s;
    if (Status s = pair.local.check(kBack, written, kBackSeed, 0); !s.ok()) return s;
  }
  out.verified = plan.verify;
  out.ours = timing_of(std::move(runs->front()));
  compare(contestants, *std::move(runs), out);
  return {};
}

Contestant NotifyRun::by_library(const Pair& pair, std::uint64_t bytes, bool low_latency) {
  return {.run = [=, this, &pair] { return round_trip(pair, bytes, low_latency, round_++); },
          .begin =
              [=, this, &pair](unsigned runs) {
                round_ = 0;
                return send_request(target_request("echo", pair.remote.place,
                                                   {runs, kBack, bytes, low_latency ? 1u : 0u}));
              },
          .end = [this] { return receive_reply(); }};
}

Result<Duration> NotifyRun::round_trip(const Pair& pair, std::uint64_t bytes, bool low_latency,
                                       std::uint64_t i) {
  const std::uint64_t at = message_offset(kOutward, bytes, i);
  const Block block{at, at, bytes};
  const TransferOptions options{
      .deadline = kStepTimeout, .notification = kNotification, .low_latency = low_latency};
  const auto begin = base::Clock::steady().now();
  const auto sent =
      both_.peer().write(pair.local.region(), pair.remote.region, std::span(&block, 1), options);
  if (!sent.ok()) return sent.status();
  if (Status s = await_notification(both_.engine()); !s.ok()) return s;
  const Duration took = (base::Clock::steady().now() - begin) / 2;
  if (Status s = sent->wait(kStepTimeout); !s.ok()) return s;
  return took;
}

Result<Contestant> NotifyRun::by_bare_code(const Pair& pair, std::uint64_t bytes) {
  struct BareSide {
    std::unique_ptr<PingPage> page;
    std::shared_ptr<const Route> route;
    std::unique_ptr<bare::Ping> ping;
  };
  auto side = std::make_shared<BareSide>();  // shared by copies of the contestant
  auto page = PingPage::create();
  if (!page.ok()) return page.status();
  side->page = *std::move(page);
  auto route = both_.reference_copies().route(pair, pair.local.place());
  if (!route.ok()) return route.status();
  side->route = std::make_shared<const Route>(*std::move(route));
  auto ping = bare::Ping::create(*side->route->device, side->page->data(), 0);
  if (!ping.ok()) return ping.status();
  side->ping = *std::move(ping);
  const auto ours = ExportedMemory::of(pair.local);
  if (!ours.ok()) return ours.status();
  if (Status s = send_request("ping " + side->page->path() + ' ' + pair.remote.place.name() + ' ' +
                              ours->encode());
      !s.ok())
    return s;
  if (Status s = receive_reply(); !s.ok()) return s;
  return Contestant{
      .how = "cuMemcpyAsync + flag in memory of both processes, and the same back",
      .run = [=, this]() -> Result<Duration> {
        const std::uint64_t at = message_offset(kBareOutward, bytes, round_++);
        return side->ping->round(side->route->to + at, side->route->from + at, bytes, kStepTimeout);
      },
      .begin =
          [=, this](unsigned runs) {
            round_ = 0;
            return send_request("pong " + std::to_string(runs) + ' ' + std::to_string(kBareBack) +
                                ' ' + std::to_string(bytes));
          },
      .end = [this] { return receive_reply(); }};
}

Status NotifyRun::send_request(const std::string& request) {
  Status status = both_.remote_target().send(request);
  reply_pending_ = status.ok();
  if (both_.remote_target().unusable()) fatal_error_ = status;
  return status;
}

Status NotifyRun::receive_reply() {
  reply_pending_ = false;
  const auto reply = both_.remote_target().receive(kReplyTimeout);
  if (both_.remote_target().unusable()) fatal_error_ = reply.status();
  return reply.status();
}

}  // namespace linkspan::tool
