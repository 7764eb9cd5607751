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
  return ends_.here.name() + " here to " + target().address.name + " there";
}

bool OutgoingLink::carries(const VerbsBatch& batch) const noexcept {
  const RemoteAccess& access = *batch.memory.access;
  return batch.memory.keys->has(ends_.device) &&
         (!access.granted || access.has(target().address.device));
}

bool OutgoingLink::may_carry(const VerbsBatch& batch) const noexcept {
  const RemoteAccess& access = *batch.memory.access;
  return batch.memory.keys->has(ends_.device) &&
         (!access.granted || std::ranges::any_of(ends_.there, [&](const RailTarget& each) {
           return access.has(each.address.device);
         }));
}

/// Goes over to the next rail of the peer's, which gets one attempt.
void OutgoingLink::next_target() noexcept {
  target_ = (target_ + 1) % ends_.there.size();
  failures_.count = kMaxFailures - 1;
}

/// Begins the next epoch.
void OutgoingLink::make() {
  if (is_exhausted()) return ask();
  if (failures_.count >= kMaxFailures) {
    ++failures_.tried;
    next_target();
  }
  if (queue_ == nullptr)
    queue_ = std::make_unique<RequestQueue>(limits_of(context_.limits, ends_.here));
  const std::uint32_t depth = limits_of(context_.limits, ends_.here).depth;
  call_ = DeviceCall::start(context_.executor, [rail = ends_.here, settings = context_.settings,
                                                depth](DeviceCall& call) {
    const auto now = find_rail(rail.device, rail.port, settings);
    if (!now.ok()) return now.status();
    auto made = QueuePair::create(*now, depth);
    if (!made.ok()) return made.status();
    call.queue_pair = *std::move(made);
    return Status();
  });
  state_ = State::making;
}

/// Asks the peer for its end of the queue pair. Without one it only destroys that of the former
/// epoch.
void OutgoingLink::ask() {
  const QueuePair* const made = queue_pair_.get();
  const std::uint32_t psn = random_psn();
  flatbuffers::FlatBufferBuilder out;
  const auto gid = vector_of(out, made != nullptr ? made->rail().gid : IbvGid{});
  out.Finish(schema::CreateVerbsOpen(out, epoch_ + 1, ends_.from, target().rail,
                                     made != nullptr ? made->number() : 0, psn, gid,
                                     made != nullptr ? made->rail().lid : std::uint16_t{0},
                                     made != nullptr ? made->max_sent_reads() : std::uint8_t{1}));
  context_.messages.send(VerbsMessage::open, out);
  ++epoch_;
  psn_ = psn;
  state_ = State::opening;
}

void OutgoingLink::on_made() {
  queue_pair_ = call_->queue_pair;
  ask();
  if (!call_->status.ok()) count_failure(call_->status);
  call_ = nullptr;
}

void OutgoingLink::count_failure(const Status& why) noexcept {
  ++failures_.count;
  failures_.last = base::or_no_memory([&] {
    return Status(Code::unreachable, Scope::peer, "RDMA by " + describe() + ": " + why.what());
  });
}

Status OutgoingLink::on_answer(const LinkAnswer& answer, base::Time now) {
  if (ending_) return {};
  if (state_ != State::opening || answer.epoch != epoch_)
    return {Code::corrupt, Scope::peer, "an answer to no question"};
  if (queue_ != nullptr) {
    queue_->reset();
    completed_before_ = queue_->completed();
  }
  if (!answer.status.ok()) count_failure(answer.status);
  if (queue_pair_ == nullptr || !answer.status.ok()) {
    // Nothing is outstanding. A queue pair that was made is not used.
    if (queue_pair_ != nullptr) (void)DeviceCall::destroy(context_.executor, queue_pair_);
    queue_pair_ = nullptr;
    state_ = State::failed;
    failures_.retry_at = now + (is_exhausted()                    ? kRetryRefused
                                : failures_.count >= kMaxFailures ? Duration::zero()
                                                                  : kRetry);
    return {};
  }
  QueuePairRoute route = answer.route;
  route.mtu = target().address.mtu;
  call_ = DeviceCall::start(context_.executor, [queue_pair = queue_pair_, route, psn = psn_,
                                                settings = context_.settings](DeviceCall&) {
    return queue_pair->connect(route, psn, settings);
  });
  state_ = State::connecting;
  return {};
}

void OutgoingLink::fence(const Status& why) {
  if (state_ != State::up) return;
  state_ = State::destroying;
  count_failure(why);
}

void OutgoingLink::redirect() noexcept {
  if (state_ != State::up || !queue_->empty()) return;
  state_ = State::destroying;
  next_target();
}

void OutgoingLink::on_failure(const SendFailure& failure) noexcept {
  state_ = State::destroying;
  VerbsBatch* const culprit = failure.culprit;
  const bool gone = failure.status == kWcRemAccessErr;  // what the culprit is about
  const Code code = culprit == nullptr || gone ? Code::unreachable : Code::system;
  const Status why = base::or_no_memory([&] {
    const Library& library = ends_.here.device->library();
    std::string text = "RDMA by " + describe() + " has failed: ";
    text += failure.post_error != 0 ? describe_error("ibv_post_send", failure.post_error)
                                    : library.wc_status_str(failure.status);
    if (failure.vendor != 0) text += " (vendor error " + std::to_string(failure.vendor) + ")";
    if (culprit != nullptr && gone) text += ": its owner has deregistered the region";
    return Status(code, culprit != nullptr ? Scope::request : Scope::peer, std::move(text));
  });
  if (culprit == nullptr) {
    ++failures_.count;
    failures_.last = why;
    return;
  }
  if (gone) culprit->memory.remote->mark_dead();
  culprit->fail(why);
}

void OutgoingLink::poll() {
  const auto failure = queue_->poll(*queue_pair_->qp());
  if (queue_->completed() != completed_before_) failures_.count = 0, failures_.tried = 0;
  if (failure) return on_failure(*failure);
  if (const Status usable = ends_.here.device->usable(ends_.here.port); !usable.ok()) fence(usable);
}

void OutgoingLink::fill(VerbsBatch& batch, std::uint64_t share) {
  const std::uint64_t remote = batch.memory.access->rkeys[target().address.device];
  const SendKeys keys{.local = batch.memory.keys->lkey(ends_.device),
                      .remote = static_cast<std::uint32_t>(remote)};
  if (const auto failure = queue_->fill(*queue_pair_->qp(), batch, keys, share))
    on_failure(*failure);
}

void OutgoingLink::destroy() {
  call_ = DeviceCall::destroy(context_.executor, queue_pair_);
  queue_pair_ = nullptr;
}

/// Destroys the queue pair, then gives the batches back what was outstanding.
void OutgoingLink::advance_end() {
  if (state_ == State::ended || (call_ != nullptr && !call_->is_done())) return;
  if (call_ != nullptr && call_->queue_pair != nullptr) queue_pair_ = call_->queue_pair;
  call_ = nullptr;
  if (queue_pair_ != nullptr) return destroy();
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
      state_ = call_->status.ok() ? State::up : State::destroying;
      if (!call_->status.ok()) count_failure(call_->status);
      call_ = nullptr;
      return;
    case State::up:
      return poll();
    case State::destroying:
      if (queue_pair_ != nullptr) return destroy();
      if (call_ != nullptr && !call_->is_done()) return;
      call_ = nullptr;
      return make();
    case State::failed:
      if (!needed || now < failures_.retry_at) return;
      if (is_exhausted()) {
        failures_.tried = 0;
        next_target();
      }
      return make();
    case State::opening:
    case State::ended:
      return;
  }
}

}  // namespace linkspan::transport::verbs
