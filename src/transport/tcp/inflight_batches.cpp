#include "transport/tcp/inflight_batches.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace linkspan::transport::tcp {
namespace {

constexpr Duration kTrafficCheck = std::chrono::milliseconds(100);

}  // namespace

bool TcpInflightBatches::any_ended() const {
  return std::ranges::any_of(all_, &TcpInflightBatch::has_ended);
}

void TcpInflightBatches::cancel(std::optional<std::uint64_t> cookie, base::Time now) {
  for (TcpInflightBatch& inflight : all_) {
    if (cookie && inflight.cookie != *cookie) continue;
    if (!inflight.canceled) inflight.canceled = now;
    group_.cancel(inflight.batch->type, inflight.batch->id);
  }
}

void TcpInflightBatches::check_canceled(base::Time now, std::string_view peer_name) {
  const auto is_canceled = [](const auto& inflight) { return inflight.canceled.has_value(); };
  if (std::ranges::none_of(all_, is_canceled)) {
    check_at_ = {};
    return;
  }
  if (now < check_at_) return;
  const bool fresh = now - check_at_ > kSilence;  // also after a long time without a check
  check_at_ = now + kTrafficCheck;
  const std::uint64_t before = std::exchange(traffic_, group_.traffic());
  if (fresh || traffic_ != before) silent_since_ = now;
  const std::string peer = "peer " + std::string(peer_name);
  if (now - silent_since_ > kSilence)
    group_.fail(Status(Code::disconnected, Scope::peer, peer + " has not answered for 5 s"));
  for (TcpInflightBatch& inflight : all_) {
    if (!inflight.canceled) continue;
    // This process was suspended: an unread answer may be here.
    if (fresh) inflight.canceled = std::max(*inflight.canceled, now - kCancelEnds + kSilence);
    if (now - *inflight.canceled > kCancelEnds)
      group_.fail(Status(Code::disconnected, Scope::peer,
                         peer + " has not ended a canceled transfer for 10 s, though bytes came "
                                "or went: connect to it again"));
  }
}

std::size_t TcpInflightBatches::complete(CompletionSink& sink) {
  return std::erase_if(all_, [&](const TcpInflightBatch& inflight) {
    if (!inflight.has_ended()) return false;
    const Status& end = inflight.batch->result.status;
    if (end.code() == Code::unreachable) inflight.remote->mark_dead();
    sink.complete({inflight.cookie, end});
    return true;
  });
}

}  // namespace linkspan::transport::tcp
