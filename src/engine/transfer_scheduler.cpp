#include "engine/transfer_scheduler.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/no_memory.hpp"
#include "engine/transfers/completion_queue.hpp"

namespace linkspan::engine {
namespace {

/// Makes room for that many elements, seldom.
template <class Vector>
void make_room(Vector& vector, std::size_t size) {
  if (vector.capacity() < size) vector.reserve(2 * size);
}

/// Runs one step of progress(). A step that has no memory is taken again by the next progress(),
/// and the others go on.
template <class Step>
void try_step(const Step& step) noexcept LINKSPAN_TSA(no_thread_safety_analysis) {
  try {
    step();
  } catch (const std::exception&) {
  }
}

}  // namespace

Status SessionChannel::send(std::uint16_t op, std::span<const std::byte> bytes,
                            std::span<base::Fd> fds) {
  return session_->send(control::FrameOp::for_transport, 0,
                        control::encode_for_transport(transport_, op, bytes), fds);
}

Status not_connected(std::uint64_t peer) {
  return {Code::disconnected, Scope::peer,
          "peer " + std::to_string(peer) + " is not connected any more"};
}

void TransferScheduler::add_peer(std::uint64_t id, std::unique_ptr<PeerRecord> peer) {
  peer->since = base::Clock::steady().now();
  if (closed_) stop_serving(*peer);
  peers_[id] = std::move(peer);
}

PeerRecord* TransferScheduler::find_peer(std::uint64_t id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.get();
}

Status TransferScheduler::may_begin(std::uint64_t id) {
  const PeerRecord* const peer = find_peer(id);
  if (peer == nullptr || peer->state != PeerState::up) return not_connected(id);
  if (!peer->closing) return {};
  return {Code::disconnected, Scope::peer,
          "peer " + std::to_string(id) + " is being closed by this side"};
}

Status TransferScheduler::may_submit(std::uint64_t id) {
  if (closed_) return {Code::canceled, Scope::process, "the Engine is closed"};
  if (Status status = may_begin(id); !status.ok()) return status;
  if (find_peer(id)->unquiet >= kQueue) return Status::no_resource();
  return {};
}

Status TransferScheduler::submit(const std::shared_ptr<TransferState>& transfer) {
  // The copy of a two-sided transfer may begin although new transfers may not.
  if (transfer->whole == nullptr)
    if (Status status = may_submit(transfer->peer); !status.ok()) return status;
  PeerRecord* peer = find_peer(transfer->peer);
  if (peer->endpoints[transfer->transport] == nullptr)  // it has a key of a transport that it lacks
    return {Code::unreachable, Scope::peer, "the peer did not offer the region's transport"};
  transfer->id = ++last_id_;
  // If the first batch is refused, the caller gets its error.
  bool waits_on_stream = false;
  if (peer->queue.empty()) {
    Status status = post_next(*peer, *transfer);
    waits_on_stream = must_wait_for_stream(status, *transfer);
    if (!status.ok() && status.code() != Code::no_resource && !waits_on_stream) return status;
  }
  admit(*peer, transfer);
  if (waits_on_stream) {
    transfer->own.keep();
    wait_for_stream(transfer);
  } else if (!transfer->all_posted()) {
    transfer->own.keep();
    peer->queue.push_back(transfer);
    pump(*peer);
  }
  return {};
}

void TransferScheduler::admit(PeerRecord& peer, const std::shared_ptr<TransferState>& transfer) {
  ++peer.unquiet;
  if (transfer->whole == nullptr) ++peer.counters.started;
  transfers_[transfer->id] = transfer;
  next_expiry_ = std::min(next_expiry_, transfer->deadline);
}

Status TransferScheduler::post_next(PeerRecord& peer, TransferState& transfer) {
  const bool last = transfer.posted + 1 == transfer.batches;
  // So that complete() allocates nothing: an end that is lost would never be told.
  for (auto* const ends : {&completions_, &handled_completions_})
    make_room(*ends, batches_.size() + 1);
  const std::uint64_t cookie = batches_.insert(&transfer);
  const Plan& plan = transfer.plan();
  const auto post = [&](const transport::Batch& batch) {
    return base::or_no_memory([&] { return peer.endpoints[transfer.transport]->post(batch); });
  };
  Status status = post(
      {.op = transfer.op,
       .local = &transfer.local->region(),
       .remote = transfer.remote->mappings[transfer.transport].get(),
       .shape = plan.batch(transfer.posted, scratch_),
       .checked = plan.checked,
       .kept = transfer.prepared != nullptr ? transfer.prepared->kept.get() : nullptr,
       .first = plan.first(transfer.posted),
       .indices_gpu = plan.indices_gpu,
       .streams = {.after = transfer.mark ? &**transfer.mark : nullptr,
                   .stream = transfer.stream.key,
                   // With several batches the last may be in the stream before the others.
                   .release = transfer.batches == 1 && transfer.wants_release
                                  ? &transfer.release_event
                                  : nullptr},
       .hints = transfer.hints,
       .path_taken = &transfer.path_taken,
       .notification = transfer.batches == 1 ? std::span<const std::byte>(transfer.notification)
                                             : std::span<const std::byte>(),
       .notifications_before = peer.notified,
       .notifies = &transfer.notifies,
       .cookie = cookie});
  if (!status.ok()) {
    batches_.extract(cookie);
    return status;
  }
  ++transfer.posted;
  ++transfer.in_flight;
  if (last) transfer.mark.reset();
  return {};
}

void TransferScheduler::pump(PeerRecord& peer) {
  if (peer.sweep) {
    std::vector<std::shared_ptr<TransferState>> over;
    for (const auto& transfer : peer.queue)
      if (transfer->all_posted()) over.push_back(transfer);
    std::erase_if(peer.queue, [](const auto& transfer) { return transfer->all_posted(); });
    peer.sweep = false;
    for (const auto& transfer : over) end_if_quiet(transfer);
  }
  while (!peer.queue.empty()) {
    const std::shared_ptr<TransferState> transfer = peer.queue.front();
    if (!transfer->all_posted()) {
      const Status status = post_next(peer, *transfer);
      if (status.code() == Code::no_resource) return;
      if (must_wait_for_stream(status, *transfer)) {
        wait_for_stream(transfer);
        peer.queue.pop_front();
        continue;
      }
      if (!status.ok()) stop(*transfer, status);
    }
    if (transfer->all_posted()) {
      peer.queue.pop_front();
      end_if_quiet(transfer);
    }
  }
}

/// Posts no more batches of the transfer and cancels those in flight.
void TransferScheduler::stop(TransferState& transfer, const Status& why) {
  if (transfer.first_error.ok()) transfer.first_error = why;
  stop_posting(transfer);
}

void TransferScheduler::stop_posting(TransferState& transfer) {
  transfer.posted = transfer.batches;
  PeerRecord* peer = find_peer(transfer.peer);
  if (peer == nullptr) return;
  peer->sweep = true;
  next_stream_poll_ = {};  // it may be one of these
  cancel_batches(*peer, transfer);
}

void TransferScheduler::cancel_batches(PeerRecord& peer, const TransferState& transfer) {
  if (transfer.in_flight == 0) return;
  batches_.for_each([&](std::uint64_t cookie, const TransferState* owner) {
    if (owner == &transfer) peer.endpoints[transfer.transport]->cancel(cookie);
  });
}

void TransferScheduler::cancel(TransferState& transfer) {
  if (transfer.quiet) return;
  if (transfer.finishing) {
    transfer.canceled = true;
    return;
  }
  if (transfer.message != nullptr) {
    transfer.canceled = true;
    if (transfer.message->stage != MessageState::Stage::waiting_on_stream)
      return rendezvous_.stop(transfer);
    return end_waiting_message(transfer, Status(Code::canceled, Scope::request, ""));
  }
  const bool unposted = !transfer.all_posted();
  transfer.canceled = true;
  const Status why(Code::canceled, Scope::request, "");  // user_status() makes the text
  if (unposted) {
    stop(transfer, why);
  } else if (PeerRecord* peer = find_peer(transfer.peer)) {
    cancel_batches(*peer, transfer);
  }
}

void TransferScheduler::cancel_all_on(const memory::Registration& registration) {
  std::vector<std::shared_ptr<TransferState>>
      found;  // to cancel may end one, which is then no more
  for (const auto& [id, transfer] : transfers_) {
    const bool on_it = transfer->message != nullptr
                           ? transfer->message->memory.lies_in(registration)
                           : transfer->local.get() == &registration;
    if (on_it && transfer->whole == nullptr) found.push_back(transfer);
  }
  for (const auto& transfer : found) cancel(*transfer);
}

/// Sends the notification and sets the status, once nothing of the transfer is in flight. Returns
/// false if the notification has no room yet.
bool TransferScheduler::finish(TransferState& transfer) {
  PeerRecord* peer = find_peer(transfer.peer);
  if (transfer.first_error.ok() && !transfer.notifies && !transfer.notification.empty()) {
    Status sent = peer == nullptr || peer->state != PeerState::up
                      ? Status(Code::disconnected, Scope::peer,
                               "the data was written, but its peer left before the notification")
                      : peer->notify(transfer.notification);
    if (sent.code() == Code::no_resource) {
      if (!transfer.expired && !transfer.canceled) return false;
      sent = Status(Code::no_resource, Scope::peer,
                    "the data was written, but its peer reads no notification");
    }
    if (sent.ok()) ++peer->counters.notifications_sent;
    transfer.first_error = std::move(sent);
    transfer.notification.clear();  // it goes once, though what follows may have no memory
  }
  transfer.end = user_status(transfer, transfer.first_error);
  make_room(garbage_, garbage_.size() + 3);
  if (transfer.whole != nullptr) copied_.emplace_back(transfer.whole->id, transfer.end);
  if (transfer.first_error.ok() && transfer.notifies && peer != nullptr)
    ++peer->counters.notifications_sent;
  return true;
}

bool TransferScheduler::end_if_quiet(const std::shared_ptr<TransferState>& transfer) {
  if (!transfer->all_posted() || transfer->in_flight != 0 || transfer->quiet) return false;
  finishing_ -= std::exchange(transfer->finishing, false) ? 1 : 0;
  bool finished = false;
  try_step([&]() LINKSPAN_REQUIRES(mutex) { finished = finish(*transfer); });
  if (!finished) {
    transfer->finishing = true;
    ++finishing_;
    return false;
  }
  transfer->local->release();
  garbage_.push_back(std::exchange(transfer->remote, nullptr));
  if (transfer->prepared != nullptr) garbage_.push_back(std::exchange(transfer->prepared, nullptr));
  if (transfer->whole != nullptr) transfer->whole->path_taken = transfer->path_taken;
  finalize(transfer);
  return true;
}

/// Makes the transfer quiet: its status is final and its memory the user's.
void TransferScheduler::finalize(const std::shared_ptr<TransferState>& transfer) {
  count_end(*transfer);
  transfers_.erase(transfer->id);
  transfer->mark.reset();
  if (const auto blocker = std::exchange(transfer->blocker, nullptr))
    blocker->open();  // whatever the end
  transfer->deferral = {};
  if (!transfer->end.ok() && log_.enabled(base::Level::info))
    try_step([&]() LINKSPAN_REQUIRES(mutex) {
      log_.write(base::Level::info, "transfer " + std::to_string(transfer->id) + " to peer " +
                                        std::to_string(transfer->peer) + " by \"" +
                                        std::string(transfer->path_taken.path) +
                                        "\" ended: " + transfer->end.to_string());
    });
  transfer->quiet.store(true, std::memory_order_release);
  if (transfer->queue != nullptr) {
    transfer->queue->push(transfer->cookie);
    garbage_.push_back(std::exchange(transfer->queue, nullptr));
  }
  ++ended_;
}

void TransferScheduler::expire(base::Time now) {
  if (now < next_expiry_) return;
  base::Time next = base::Time::max();
  std::vector<std::shared_ptr<TransferState>> due;  // some end at once
  for (auto& [id, transfer] : transfers_) {
    if (transfer->expired) continue;
    if (transfer->deadline > now) {
      next = std::min(next, transfer->deadline);
      continue;
    }
    due.push_back(transfer);
  }
  // Before memory ends in one of them, which the next look at the deadlines then takes again.
  next_expiry_ = next;
  for (const auto& transfer : due) {
    transfer->expired = true;
    try {
      cancel(*transfer);
    } catch (const std::exception&) {
      transfer->expired = false;
      next_expiry_ = now;
    }
  }
}

std::size_t TransferScheduler::progress(base::Time now) {
  if (!transfers_.empty()) {
    try_step([&]() LINKSPAN_REQUIRES(mutex) { expire(now); });
    try_step([&]() LINKSPAN_REQUIRES(mutex) { poll_user_streams(now); });
  }
  for (auto& [id, peer] : peers_)
    for (auto& endpoint : peer->endpoints)
      if (endpoint != nullptr)
        try_step([&]() LINKSPAN_REQUIRES(mutex) { endpoint->progress(*this); });
  handled_completions_.clear();
  handled_completions_.swap(completions_);  // both keep their capacity
  for (transport::Completion& completion : handled_completions_) {
    const auto owner = batches_.extract(completion.cookie);
    if (!owner) continue;
    TransferState& transfer = **owner;
    --transfer.in_flight;
    if (!completion.status.ok() && transfer.first_error.ok()) {
      transfer.first_error = std::move(completion.status);
      try_step([&]() LINKSPAN_REQUIRES(mutex) { stop_posting(transfer); });
    }
    if (const auto whole = transfers_.find(transfer.id); whole != transfers_.end())
      end_if_quiet(std::shared_ptr(whole->second));
  }
  for (auto& each : peers_) try_step([&]() LINKSPAN_REQUIRES(mutex) { pump(*each.second); });
  if (finishing_ != 0)
    try_step([&]() LINKSPAN_REQUIRES(mutex) {
      std::vector<std::shared_ptr<TransferState>> finishing;
      for (auto& [id, transfer] : transfers_)
        if (transfer->finishing) finishing.push_back(transfer);
      for (const auto& transfer : finishing) end_if_quiet(transfer);
    });
  for (auto& each : peers_)
    try_step([&]() LINKSPAN_REQUIRES(mutex) { finish_peer_teardown(each.first, *each.second); });
  try_step([&]() LINKSPAN_REQUIRES(mutex) { progress_two_sided(); });
  for (auto each = peers_.begin(); each != peers_.end();) {
    // A peer that is gone is forgotten once no copy for it is in progress.
    PeerRecord& peer = *each->second;
    const bool over = peer.state == PeerState::gone && peer.unquiet == 0 && is_idle(peer);
    if (over) {
      forgotten_counters_.add(peer.counters);
      garbage_.push_back(rendezvous_.forget(each->first));
      garbage_.push_back(std::shared_ptr<PeerRecord>(std::move(each->second)));
    }
    each = over ? peers_.erase(each) : std::next(each);
  }
  return std::exchange(ended_, 0);
}

transport::PollHint TransferScheduler::poll_hint() {
  using When = transport::PollHint::When;
  if (!copied_.empty()) return {When::now, {}};
  transport::PollHint next;
  if (!transfers_.empty()) next = {When::at, next_expiry_};
  if (!waiting_on_stream_.empty()) next.at = std::min(next.at, next_stream_poll_);
  if (unsent_ != 0 || finishing_ != 0 ||
      !awaiting_release_.empty()) {  // these wait for the peer, which wakes no thread
    const base::Time soon = base::Clock::steady().now() + std::chrono::milliseconds(1);
    if (next.when == When::idle || soon < next.at) next = {When::at, soon};
  }
  for (auto& [id, peer] : peers_) {
    if (peer->state == PeerState::gone) return {When::now, {}};
    for (auto& endpoint : peer->endpoints) {
      if (endpoint == nullptr) continue;
      const transport::PollHint look = endpoint->poll_hint();
      if (look.when == When::now) return look;
      const bool for_peer = next.for_peer || look.for_peer;
      if (look.when == When::at && (next.when == When::idle || look.at < next.at)) next = look;
      next.for_peer = for_peer;
    }
  }
  return next;
}

void TransferScheduler::on_peer_lost(std::uint64_t id) {
  PeerRecord* peer = find_peer(id);
  if (peer == nullptr || peer->state != PeerState::up) return;
  peer->state = PeerState::lost;
  const Status why(Code::disconnected, Scope::peer,
                   "peer " + peer->session->describe() + " is lost");
  for (const auto& transfer : peer->queue) stop(*transfer, why);
  for (const auto& transfer : waiting_on_stream_) {
    if (transfer->peer != id) continue;
    transfer->message != nullptr ? end_waiting_message(*transfer, why) : stop(*transfer, why);
  }
  unsent_ -= std::exchange(peer->unsent, {}).size();
  rendezvous_.on_peer_lost(id);
}

void TransferScheduler::on_peer_gone(std::uint64_t id) {
  on_peer_lost(id);
  PeerRecord* peer = find_peer(id);
  if (peer == nullptr) return;
  for (auto& endpoint : peer->endpoints)
    if (endpoint != nullptr) endpoint->peer_terminated();
  peer->draining = true;
  finish_peer_teardown(id, *peer);
}

/// Makes a disconnected peer gone once no data of it can arrive any more.
void TransferScheduler::finish_peer_teardown(std::uint64_t id, PeerRecord& peer) {
  if (!peer.draining || std::ranges::any_of(peer.endpoints, [](const auto& endpoint) {
        return endpoint != nullptr && !endpoint->drained();
      }))
    return;
  peer.draining = false;
  peer.state = PeerState::gone;
  rendezvous_.on_peer_gone(id);
}

void TransferScheduler::drain_notifications(std::vector<Notification>& into) {
  for (auto& [id, peer] : peers_)
    while (auto next = peer->session->next_notification()) {
      ++peer->counters.notifications_received;
      into.push_back({id, *std::move(next)});
    }
}

bool TransferScheduler::request_wake_ups() {
  bool silent = true;
  for (auto& [id, peer] : peers_) silent = peer->session->request_doorbell() && silent;
  return silent;
}

std::vector<std::shared_ptr<void>> TransferScheduler::extract_garbage() {
  return std::exchange(garbage_, {});
}

}  // namespace linkspan::engine
