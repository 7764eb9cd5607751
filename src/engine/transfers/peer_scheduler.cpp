#include "engine/transfers/peer_scheduler.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/no_memory.hpp"
#include "engine/transfers/completion_queue.hpp"
#include "transport/batch.hpp"

namespace linkspan::engine {

Status PeerScheduler::submit(const std::shared_ptr<TransferState>& transfer) {
  {
    const base::MutexLock lock(mutex_);
    touch();
    if (Status status = check_room(); !status.ok()) return status;
    if (Status status = start(transfer); !status.ok()) return status;
  }
  if (!transfer->by_user.for_submitter()) return {};
  transfer->by_user.make();  // Endpoints end with this object, which the caller keeps
  try_progress(transfer->ending.submitted);
  return {};
}

Status PeerScheduler::check_room() const {
  if (!status_.refusal.ok()) return status_.refusal;
  if (Status status = check_up(); !status.ok()) return status;
  return transfers_.size() < kMaxTransfers ? Status() : Status::no_resource();
}

Status PeerScheduler::start(const std::shared_ptr<TransferState>& transfer) {
  for (const TransferEndpoints& pair : transfer->all_pairs()) {
    if (endpoints_.at(pair.transport) == nullptr)  // it has a key of a transport that it lacks
      return {Code::unreachable, Scope::peer, "the peer did not offer the region's transport"};
    if (transfer->pairs && transfer->pairs->alike()) break;  // all by one transport
  }
  Status status = base::or_no_memory([&]() LINKSPAN_TSA(no_thread_safety_analysis) {
    admit(transfer);  // before a batch is in flight, because it may have no memory
    return Status();
  });
  if (!status.ok()) return status;
  status = base::or_no_memory(
      [&]() LINKSPAN_TSA(no_thread_safety_analysis) { return post_or_queue(transfer); });
  if (status.ok()) return {};
  std::erase(queue_, transfer);  // its lists are the user's still
  if (transfer->batches.in_flight == 0) {
    dismiss(*transfer);
    return status;
  }
  // Its caller must get it; it ends with the error.
  (void)base::or_no_memory([&]() LINKSPAN_TSA(no_thread_safety_analysis) {
    stop(*transfer, status);
    return Status();
  });
  return {};
}

/// Posts what has room, if nothing is queued, and queues the rest, of which the user's page lists
/// are copied. If the first batch is refused, the caller gets its error.
Status PeerScheduler::post_or_queue(const std::shared_ptr<TransferState>& transfer) {
  bool waits_on_stream = false;
  if (queue_.empty()) {
    Status status = post_next(*transfer);
    waits_on_stream = must_wait_for_stream(status, *transfer);
    if (!status.ok() && status.code() != Code::no_resource && !waits_on_stream) return status;
  }
  transfer->by_user.allowed = false;  // another thread may post the rest
  if (waits_on_stream) {
    transfer->batches.keep();
    stream_waits_.add(transfer, base::Clock::steady().now());
  } else if (!transfer->batches.all_posted()) {
    queue_.push_back(transfer);
    (void)base::or_no_memory([&]() LINKSPAN_TSA(no_thread_safety_analysis) {
      pump();
      return Status();
    });
    if (!transfer->batches.all_posted()) transfer->batches.keep();
  } else {
    end_if_quiet(*transfer);
  }
  return {};
}

/// Adds a transfer that is about to begin.
void PeerScheduler::admit(const std::shared_ptr<TransferState>& transfer) {
  transfer->id = events_.new_transfer_id();
  transfers_.emplace(transfer->id, transfer);
  if (transfer->whole == nullptr) ++counters_.started;
  next_expiry_ = std::min(next_expiry_, transfer->ending.deadline);
}

/// Removes a transfer that did not begin.
void PeerScheduler::dismiss(const TransferState& transfer) {
  if (transfer.whole == nullptr) --counters_.started;
  transfers_.erase(transfer.id);
}

/// Returns true if the transport cannot wait for the user's stream, so the PeerScheduler does.
bool PeerScheduler::must_wait_for_stream(const Status& status, const TransferState& transfer) {
  return status.code() == Code::unsupported && transfer.streams.mark &&
         transfer.batches.next.batch == 0;
}

Status PeerScheduler::post_next(TransferState& transfer) {
  const auto [between, pair, transport, plan, index, kept] = transfer.next_batch();
  const transport::BatchShape shape = plan.batch(index, scratch_);
  // A pair without bytes has no path: it keeps that of the batches before.
  const auto* const blocks = std::get_if<std::span<const Block>>(&shape);
  const bool has_path = transfer.batches.posted == 0 || blocks == nullptr || !blocks->empty();
  const std::uint64_t cookie = batches_.add(transfer, transport, pair);
  transport::Endpoint& endpoint = *endpoints_.at(transport);
  std::optional<PairsAfterNext> more;
  if (transfer.batches.failover.moved.empty()) more.emplace(transfer);
  const bool user_copies = transfer.by_user.allowed && transfer.batches.count == 1;
  const auto post = [&](const transport::Batch& batch) {
    return base::or_no_memory([&] { return endpoint.post(batch); });
  };
  auto posted = post(
      {.op = transfer.op,
       .local = &between.local->region(),
       .remote = between.remote->mappings[transport].get(),
       .shape = shape,
       .checked = plan.checked,
       .kept = kept,
       .more = more ? &*more : nullptr,
       .first = plan.first(index),
       .indices_gpu = plan.indices_gpu,
       .streams = {.after = transfer.streams.mark ? &**transfer.streams.mark : nullptr,
                   .stream = transfer.streams.after.key,
                   // With several batches the last may be in the stream before the others.
                   .wants_event = transfer.batches.count == 1 && transfer.streams.wants_release},
       .hints = transfer.batches.hints,
       .notification = transfer.batches.count == 1
                           ? std::span<const std::byte>(transfer.notification.bytes)
                           : std::span<const std::byte>(),
       .notifications_before = frames_.notified(),
       .caller_copies = user_copies,
       .cookie = cookie});
  if (!posted.ok()) {
    const Status& status = posted.status();
    batches_.remove(cookie);
    if (plan.indices_gpu == GpuUuid{} && fails_over({&transfer, transport, pair}, status)) {
      std::vector<Block> left = transport::blocks_of(shape);
      transfer.count_posted(0);
      --transfer.batches.in_flight;
      const PostedBatch batch{&transfer, transport, pair};
      const Status moved = base::or_no_memory([&]() LINKSPAN_TSA(no_thread_safety_analysis) {
        move_over(batch, status, std::move(left));
        return Status();
      });
      return moved.ok() ? post_next(transfer) : moved;  // which fails the transfer
    }
    const bool names_pair = transfer.pairs && status.code() != Code::no_resource;
    return names_pair ? status_of_pair(pair, status) : status;
  }
  if (has_path) transfer.batches.path_taken = posted->path;
  transfer.notification.in_batch = posted->notifies;
  transfer.streams.release_event = std::move(posted->event);
  if (user_copies && posted->callers_copy.id != 0)
    transfer.by_user = {.endpoint = &endpoint, .copy = posted->callers_copy};
  transfer.count_posted(posted->joined);
  if (posted->ended) {
    batches_.remove(cookie);
    --transfer.batches.in_flight;
  }
  if (transfer.batches.all_posted()) transfer.streams.mark.reset();
  return {};
}

void PeerScheduler::pump() {
  if (sweep_) {
    std::vector<std::shared_ptr<TransferState>> over;
    for (const auto& transfer : queue_)
      if (transfer->batches.all_posted()) over.push_back(transfer);
    std::erase_if(queue_, [](const auto& transfer) { return transfer->batches.all_posted(); });
    sweep_ = false;
    for (const auto& transfer : over) end_if_quiet(*transfer);
  }
  while (!queue_.empty()) {
    const std::shared_ptr<TransferState> transfer = queue_.front();
    if (!transfer->batches.all_posted()) {
      const Status status = post_next(*transfer);
      if (status.code() == Code::no_resource) return;
      if (must_wait_for_stream(status, *transfer)) {
        stream_waits_.add(transfer, base::Clock::steady().now());
        queue_.pop_front();
        continue;
      }
      if (!status.ok()) stop(*transfer, status);
    }
    if (transfer->batches.all_posted()) {
      queue_.pop_front();
      end_if_quiet(*transfer);
    }
  }
}

bool PeerScheduler::resume(const std::shared_ptr<TransferState>& transfer) {
  return transfer->message != nullptr ? resume_message(*transfer) : resume_copy(transfer);
}

/// Returns true if the transfer waits no longer; pump() then posts it, or ends it if it was
/// stopped.
bool PeerScheduler::resume_copy(const std::shared_ptr<TransferState>& transfer) {
  if (!transfer->batches.all_posted()) {
    const Result<bool> passed = transfer->streams.passed();
    if (passed.ok() && !*passed) return false;
    if (!passed.ok()) stop(*transfer, passed.status());
    transfer->streams.mark.reset();
  }
  queue_.push_back(transfer);
  return true;
}

/// Returns true if the message waits no longer: the stream has reached the mark, or it is over.
bool PeerScheduler::resume_message(TransferState& transfer) {
  MessageState& x = *transfer.message;
  if (x.stage == MessageState::Stage::over) return true;
  const Result<bool> passed = transfer.streams.passed();
  if (passed.ok() && !*passed) return false;
  transfer.streams.mark.reset();
  if (!passed.ok()) {
    end_waiting_message(transfer, passed.status());
    return true;
  }
  x.stage = MessageState::Stage::unmatched;
  Status status;
  try {
    status = begin_message(transfer, x.frame);
  } catch (...) {
    x.stage = MessageState::Stage::waiting_on_stream;  // and is tried again
    throw;
  }
  if (status.ok()) return true;
  x.stage = MessageState::Stage::waiting_on_stream;
  if (status.code() == Code::no_resource) return false;
  end_waiting_message(transfer, status);
  return true;
}

void PeerScheduler::end_waiting_message(TransferState& transfer, const Status& status) {
  if (transfer.message->stage != MessageState::Stage::waiting_on_stream) return;
  stream_waits_.poll_soon();
  end(transfer, transfer.ending.user_status(status));  // may throw, and is tried again then
  transfer.message->stage = MessageState::Stage::over;
}

/// Posts no more batches of the transfer and cancels those in flight.
void PeerScheduler::stop(TransferState& transfer, const Status& why) {
  transfer.ending.fail(why);
  stop_posting(transfer);
}

void PeerScheduler::stop_posting(TransferState& transfer) {
  transfer.batches.posted = transfer.batches.count;
  sweep_ = true;
  stream_waits_.poll_soon();  // it may be one of these
  cancel_batches(transfer);
}

void PeerScheduler::cancel_batches(const TransferState& transfer) {
  if (transfer.batches.in_flight == 0) return;
  batches_.for_each_of(transfer, [&](std::uint64_t cookie, std::size_t transport)
                                     LINKSPAN_TSA(no_thread_safety_analysis) {
                                       endpoints_.at(transport)->cancel(cookie);
                                     });
}

void PeerScheduler::cancel(TransferState& transfer) {
  const base::MutexLock lock(mutex_);
  touch();
  cancel_now(transfer);
  advance(base::Clock::steady().now());
}

void PeerScheduler::cancel_now(TransferState& transfer) {
  if (transfer.quiet) return;
  if (transfer.ending.finishing) {
    transfer.ending.canceled = true;
    return;
  }
  if (transfer.message != nullptr) {
    transfer.ending.canceled = true;
    if (transfer.message->stage != MessageState::Stage::waiting_on_stream)
      return rendezvous_.stop(transfer);
    return end_waiting_message(transfer, Status(Code::canceled, Scope::request, ""));
  }
  const bool unposted = !transfer.batches.all_posted();
  transfer.ending.canceled = true;
  if (unposted)
    stop(transfer, Status(Code::canceled, Scope::request, ""));  // user_status() makes the text
  else
    cancel_batches(transfer);
}

void PeerScheduler::cancel_all() {
  std::vector<std::shared_ptr<TransferState>> all;  // some end at once
  for (const auto& [id, transfer] : transfers_) all.push_back(transfer);
  for (const auto& transfer : all) cancel_now(*transfer);
}

void PeerScheduler::cancel_all_on(const memory::Registration& registration) {
  const base::MutexLock lock(mutex_);
  touch();
  std::vector<std::shared_ptr<TransferState>> found;  // a cancel may end one and remove it
  for (const auto& [id, transfer] : transfers_) {
    bool on_it = transfer->message != nullptr && transfer->message->memory.lies_in(registration);
    if (transfer->message == nullptr)
      on_it = std::ranges::any_of(transfer->all_pairs(), [&](const TransferEndpoints& pair) {
        return pair.local.get() == &registration;
      });
    if (on_it && transfer->whole == nullptr) found.push_back(transfer);
  }
  for (const auto& transfer : found) cancel_now(*transfer);
}

void PeerScheduler::attach(TransferState& transfer, std::shared_ptr<CompletionQueueState> queue,
                           std::uint64_t cookie) {
  const base::MutexLock lock(mutex_);
  if (transfer.quiet) return queue->push(cookie);
  transfer.completion.queue = std::move(queue);
  transfer.completion.cookie = cookie;
}

StreamRelease PeerScheduler::release_stream(TransferState& transfer,
                                            std::shared_ptr<StreamBlocker> blocker) {
  const base::MutexLock lock(mutex_);
  return transfer.streams.release(std::move(blocker), transfer.quiet);
}

Result<Explanation> PeerScheduler::explain(const TransferEndpoints& between,
                                           const transport::BatchSummary& size) {
  const base::MutexLock lock(mutex_);
  if (status_.closing)
    return Status(Code::disconnected, Scope::peer, "peer " + std::to_string(id()) + " is gone");
  const transport::Endpoint* const endpoint = endpoints_.at(between.transport);
  if (endpoint == nullptr)
    return Status(Code::unreachable, Scope::peer, "the peer did not offer the region's transport");
  return endpoint->explain(between.op, between.local->region(),
                           *between.remote->mappings[between.transport], size);
}

}  // namespace linkspan::engine
