#include "transport/verbs/outgoing_link.hpp"

#include <algorithm>
#include <utility>

#include "base/schema/verbs_generated.h"

namespace linkspan::transport::verbs {
namespace {

using namespace std::chrono_literals;

constexpr Duration kRetry = 100ms;      // after a failure
constexpr Duration kRetryRefused = 5s;  // after kMaxFailures

SendLimits limits_of(const SendLimits& limits, const Rail& rail) {
  SendLimits out = limits;
  const auto requests = static_cast<std::uint32_t>(
      std::clamp(rail.device->attributes().max_qp_wr, 1, static_cast<int>(limits.depth)));
  const auto completions = static_cast<std::uint32_t>(
      std::clamp(rail.device->attributes().max_cqe - 1, 1, static_cast<int>(limits.depth)));
  out.depth = std::min(requests, completions);
  out.request = std::min(limits.request, rail.max_message);
  return out;
}

}  // namespace

std::string OutgoingLink::describe() const {
  return ends_.here.name() + " here to " + ends_.there.name + " there";
}

/// Begins the next epoch.
void OutgoingLink::make() {
  ++epoch_;
  psn_ = random_psn();
  if (failures_.count >= kMaxFailures) return ask(0);
  if (queue_ == nullptr)
    queue_ = std::make_unique<RequestQueue>(limits_of(context_.limits, ends_.here));
  completed_before_ = queue_->completed();
  const std::uint32_t depth = limits_of(context_.limits, ends_.here).depth;
  call_ = DeviceCall::start(context_.executor, [rail = ends_.here, depth](DeviceCall& call) {
    auto made = QueuePair::create(rail, depth);
    if (made.ok()) call.queue_pair = *std::move(made);
    return made.status();
  });
  state_ = State::making;
}

void OutgoingLink::ask(std::uint32_t queue_pair) {
  flatbuffers::FlatBufferBuilder out;
  out.Finish(schema::CreateVerbsOpen(
      out, epoch_, ends_.pair.from, ends_.pair.to, queue_pair, psn_,
      queue_pair_ != nullptr ? queue_pair_->max_sent_reads() : std::uint8_t{1}));
  context_.messages.send(VerbsMessage::open, out);
  state_ = State::opening;
}

void OutgoingLink::on_made() {
  const auto call = std::exchange(call_, nullptr);
  queue_pair_ = call->queue_pair;
  if (!call->status.ok()) {
    failures_.last = call->status;
    ++failures_.count;
  }
  ask(queue_pair_ != nullptr ? queue_pair_->number() : 0);
}

Status OutgoingLink::on_answer(const LinkAnswer& answer, base::Time now) {
  if (state_ != State::opening || answer.epoch != epoch_ || ending_)
    return ending_ ? Status() : Status(Code::corrupt, Scope::peer, "an answer to no question");
  if (queue_ != nullptr) queue_->reset();
  if (!answer.status.ok()) {
    failures_.last = answer.status;
    ++failures_.count;
  }
  if (queue_pair_ == nullptr || !answer.status.ok()) {
    wait_to_retry(now);
    return {};
  }
  const QueuePairRoute route{.queue_pair = answer.queue_pair,
                             .psn = 0,
                             .gid = ends_.there.gid,
                             .lid = ends_.there.lid,
                             .mtu = ends_.there.mtu,
                             .reads = answer.reads};
  call_ = DeviceCall::start(context_.executor, [queue_pair = queue_pair_, route, psn = psn_,
                                                settings = context_.settings](DeviceCall&) {
    return queue_pair->connect(route, psn, settings);
  });
  state_ = State::connecting;
  return {};
}

/// Nothing is outstanding; the queue pair that was made is not used.
void OutgoingLink::wait_to_retry(base::Time now) {
  if (queue_pair_ != nullptr)
    (void)DeviceCall::destroy(context_.executor, std::exchange(queue_pair_, nullptr));
  state_ = State::failed;
  failures_.retry_at = now + (failures_.count >= kMaxFailures ? kRetryRefused : kRetry);
}

void OutgoingLink::fail(const Status& why) {
  failures_.last = why;
  call_ = DeviceCall::destroy(context_.executor, std::exchange(queue_pair_, nullptr));
  state_ = State::destroying;
}

void OutgoingLink::fence(const Status& why) {
  if (state_ != State::up) return;
  ++failures_.count;
  fail(why);
}

void OutgoingLink::on_failure(const SendFailure& failure) {
  std::string text = "RDMA by " + describe() + " has failed: " + failure.text;
  if (failure.vendor != 0) text += " (vendor error " + std::to_string(failure.vendor) + ")";
  Code code = Code::unreachable;
  if (failure.culprit == nullptr) {
    ++failures_.count;
  } else if (failure.status == kWcRemAccessErr) {
    failure.culprit->fail({Code::unreachable, Scope::request, text + ": the region is not there"});
    failure.culprit->remote->mark_dead();
  } else {
    code = Code::system;
    failure.culprit->fail({code, Scope::request, text});
  }
  fail({code, Scope::peer, std::move(text)});
}

void OutgoingLink::poll() {
  const auto failure = queue_->poll(*queue_pair_);
  if (queue_->completed() != completed_before_) failures_.count = 0;
  if (failure) return on_failure(*failure);
  if (const Status usable = ends_.here.device->usable(ends_.here.port); !usable.ok()) fence(usable);
}

void OutgoingLink::fill(VerbsBatch& batch, std::uint64_t share) {
  const auto& rkeys = batch.access->rkeys;
  if (ends_.there.device >= rkeys.size())
    return batch.fail({Code::corrupt, Scope::peer, "the peer gave too few keys of the region"});
  const SendKeys keys{.local = batch.keys->lkey(ends_.device), .remote = rkeys[ends_.there.device]};
  if (const auto failure = queue_->fill(*queue_pair_, batch, keys, share)) on_failure(*failure);
}

/// Destroys the queue pair, then gives the batches back what was outstanding.
void OutgoingLink::advance_end() {
  if (state_ == State::ended || (call_ != nullptr && !call_->is_done())) return;
  if (call_ != nullptr && call_->queue_pair != nullptr) queue_pair_ = call_->queue_pair;
  call_ = nullptr;
  if (queue_pair_ != nullptr) {
    call_ = DeviceCall::destroy(context_.executor, std::exchange(queue_pair_, nullptr));
    return;
  }
  if (queue_ != nullptr) queue_->reset();
  state_ = State::ended;
}

void OutgoingLink::advance(base::Time now, bool needed) {
  if (ending_) return advance_end();
  switch (state_) {
    case State::idle:
      return make();
    case State::making:
      return call_->is_done() ? on_made() : void();
    case State::connecting:
      if (!call_->is_done()) return;
      if (const Status status = std::exchange(call_, nullptr)->status; !status.ok()) {
        ++failures_.count;
        return fail(status);
      }
      state_ = State::up;
      return;
    case State::up:
      return poll();
    case State::destroying:
      if (!call_->is_done()) return;
      call_ = nullptr;
      return make();
    case State::failed:
      if (!needed || now < failures_.retry_at) return;
      if (failures_.count >= kMaxFailures) failures_.count = kMaxFailures - 1;  // one attempt
      return make();
    case State::opening:
    case State::ended:
      return;
  }
}

}  // namespace linkspan::transport::verbs
