// PeerScheduler: progress, the ends of transfers, and the threads that wait for them.
#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "engine/transfers/completion_queue.hpp"
#include "engine/transfers/peer_scheduler.hpp"

namespace linkspan::engine {
namespace {

using namespace std::chrono_literals;
using When = transport::PollHint::When;

constexpr Duration kSpin = 200us;  // shorter waits poll without sleeping
/// Until so long after the submission a waiter yields where it else sleeps: after a sleep the
/// thread's caches are cold, and its next post takes 30 us longer.
constexpr Duration kYields = 4ms;
constexpr Duration kWakeUp = 100us;     // latency of waking up
constexpr Duration kMaxWait = 10ms;     // also the cost of a missed wake-up
constexpr Duration kUserPolls = 100us;  // the ProgressThread's pause while a user's thread polls
constexpr unsigned kPollsPerClockRead =
    4;  // for each read of the clock and acquisition of the lock

/// Makes room for that many elements. Allocates rarely.
template <class Vector>
void make_room(Vector& vector, std::size_t size) {
  if (vector.capacity() < size) vector.reserve(2 * size);
}

/// Runs one step of progress(). If a step finds no memory, the next progress() repeats it, and the
/// other steps run.
template <class Step>
void try_step(const Step& step) noexcept LINKSPAN_TSA(no_thread_safety_analysis) {
  try {
    step();
  } catch (const std::exception&) {
  }
}

}  // namespace

/// Sends the notification and sets the status, once nothing of the transfer is in flight. Returns
/// false if the notification has no room yet.
bool PeerScheduler::finish(TransferState& transfer) {
  if (transfer.ending.first_error.ok() && transfer.notification.to_send()) {
    Status sent = status_.state != PeerState::up
                      ? Status(Code::disconnected, Scope::peer,
                               "the data was written, but its peer left before the notification")
                      : frames_.notify(transfer.notification.bytes);
    if (sent.code() == Code::no_resource) {
      if (!transfer.ending.is_asked()) return false;
      sent = Status(Code::no_resource, Scope::peer,
                    "the data was written, but its peer reads no notification");
    }
    if (sent.ok()) ++counters_.notifications_sent;
    transfer.ending.first_error = std::move(sent);
    transfer.notification.bytes
        .clear();  // so that it is sent once, even if a later step finds no memory
  }
  transfer.end = transfer.ending.user_status(transfer.ending.first_error);
  make_room_to_end();
  if (transfer.whole != nullptr) copied_.emplace_back(transfer.whole->id, transfer.end);
  if (transfer.ending.first_error.ok() && transfer.notification.in_batch)
    ++counters_.notifications_sent;
  return true;
}

/// Makes room for what the end of one transfer adds to lists, so that it allocates nothing.
void PeerScheduler::make_room_to_end() {
  make_room(garbage_, garbage_.size() + 4);
  make_room(awaiting_release_, awaiting_release_.size() + 1);
}

bool PeerScheduler::end_if_quiet(TransferState& transfer) {
  if (!transfer.batches.all_posted() || transfer.batches.in_flight != 0 || transfer.quiet)
    return false;
  finishing_ -= std::exchange(transfer.ending.finishing, false) ? 1 : 0;
  bool finished = false;
  try_step([&]() LINKSPAN_REQUIRES(mutex_) { finished = finish(transfer); });
  if (!finished) {
    transfer.ending.finishing = true;
    ++finishing_;
    return false;
  }
  if (transfer.pairs)
    garbage_.push_back(transfer.pairs.release());
  else
    transfer.local->release();
  garbage_.push_back(std::exchange(transfer.remote, nullptr));
  if (transfer.batches.prepared != nullptr)
    garbage_.push_back(std::exchange(transfer.batches.prepared, nullptr));
  if (transfer.whole != nullptr) transfer.whole->batches.path_taken = transfer.batches.path_taken;
  finalize(transfer);
  return true;
}

/// Makes the transfer quiet: its status is final and its memory the user's.
void PeerScheduler::finalize(TransferState& transfer) {
  count_end(transfer);
  transfer.ending.range.end();
  const auto kept = transfers_.extract(transfer.id);  // alive until the end of this function
  transfer.streams.end();
  if (!transfer.end.ok() && log_.enabled(base::Level::info))
    try_step([&] {
      log_.write(base::Level::info, "transfer " + std::to_string(transfer.id) + " to peer " +
                                        std::to_string(transfer.peer) + " by \"" +
                                        std::string(transfer.batches.path_taken.path) +
                                        "\" ended: " + transfer.end.to_string());
    });
  transfer.quiet.store(true, std::memory_order_release);
  if (transfer.completion.queue != nullptr) {
    transfer.completion.queue->push(transfer.completion.cookie);
    garbage_.push_back(std::exchange(transfer.completion.queue, nullptr));
  }
  ++ended_;
  events_.on_quiet();
}

void PeerScheduler::expire(base::Time now) {
  if (now < next_expiry_) return;
  base::Time next = base::Time::max();
  std::vector<std::shared_ptr<TransferState>> due;  // some end at once
  for (auto& [id, transfer] : transfers_) {
    if (transfer->ending.expired) continue;
    if (transfer->ending.deadline > now) {
      next = std::min(next, transfer->ending.deadline);
      continue;
    }
    due.push_back(transfer);
  }
  // Set before the loop: a transfer for which there is no memory lowers it again.
  next_expiry_ = next;
  for (const auto& transfer : due) {
    transfer->ending.expired = true;
    try {
      cancel_now(*transfer);
    } catch (const std::exception&) {
      transfer->ending.expired = false;
      next_expiry_ = now;
    }
  }
}

std::size_t PeerScheduler::progress(base::Time now) {
  const base::MutexLock lock(mutex_);
  return advance(now);
}

void PeerScheduler::try_progress(base::Time now) noexcept {
  ++looks_;
  if (!mutex_.try_lock()) return;
  try_step([&]() LINKSPAN_REQUIRES(mutex_) { (void)advance(now); });
  mutex_.unlock();
}

/// Makes progress and wakes the threads in wait() if a transfer became quiet.
std::size_t PeerScheduler::advance(base::Time now) {
  if (!transfers_.empty()) try_step([&]() LINKSPAN_REQUIRES(mutex_) { expire(now); });
  if (!stream_waits_.empty())  // also one that has ended: a part of it had failed
    try_step([&]() LINKSPAN_REQUIRES(mutex_) {
      stream_waits_.poll(now, [&](const std::shared_ptr<TransferState>& transfer) LINKSPAN_TSA(
                                  no_thread_safety_analysis) { return resume(transfer); });
    });
  endpoints_.progress(batches_);
  batches_.handle([&](const PostedBatch& posted, transport::Completion& batch)
                      LINKSPAN_TSA(no_thread_safety_analysis) {
                        TransferState& transfer = *posted.of;
                        --transfer.batches.in_flight;
                        if (!batch.unfinished.empty())
                          try_step([&]() LINKSPAN_REQUIRES(mutex_) { move_over(posted, batch); });
                        if (!batch.path.path.empty()) transfer.batches.path_taken = batch.path;
                        if (!batch.status.ok() && transfer.ending.first_error.ok()) {
                          transfer.ending.first_error = std::move(batch.status);
                          try_step([&]() LINKSPAN_REQUIRES(mutex_) { stop_posting(transfer); });
                        }
                        end_if_quiet(transfer);
                      });
  try_step([&]() LINKSPAN_REQUIRES(mutex_) { pump(); });
  if (finishing_ != 0)
    try_step([&]() LINKSPAN_REQUIRES(mutex_) {
      std::vector<std::shared_ptr<TransferState>> finishing;
      for (auto& [id, transfer] : transfers_)
        if (transfer->ending.finishing) finishing.push_back(transfer);
      for (const auto& transfer : finishing) end_if_quiet(*transfer);
    });
  try_step([&]() LINKSPAN_REQUIRES(mutex_) { finish_teardown(); });
  try_step([&]() LINKSPAN_REQUIRES(mutex_) { progress_messages(); });
  const std::size_t ended = std::exchange(ended_, 0);
  if (ended != 0 && sleepers_ != 0) quiet_.notify_all();
  return ended;
}

transport::PollHint PeerScheduler::poll_hint(base::Time now) {
  if (!copied_.empty()) return {When::now, {}};
  transport::PollHint next = endpoints_.poll_hint();
  const auto at_latest = [&](base::Time at) {
    if (next.when == When::now || (next.when == When::at && next.at <= at)) return;
    next.when = When::at;
    next.at = at;
    next.patient = false;
  };
  if (!transfers_.empty()) at_latest(next_expiry_);
  if (!stream_waits_.empty()) at_latest(stream_waits_.next_poll());
  if (frames_.unsent() != 0 || finishing_ != 0 || !awaiting_release_.empty())
    at_latest(now + 1ms);  // these wait for the peer, whose progress wakes no thread here
  if (status_.draining) at_latest(now + 1ms);  // the end of a data connection wakes no thread
  return next;
}

PeerScheduler::Polled PeerScheduler::poll(base::Time now) {
  const transport::PollHint later{.when = When::at, .at = now + kUserPolls, .patient = true};
  Polled polled{.hint = later};
  const bool looked_lately = looks_.exchange(0) != 0;
  if (!mutex_.try_lock()) return polled;       // another thread makes progress
  std::vector<std::shared_ptr<void>> garbage;  // destroyed without the mutex
  try_step([&]() LINKSPAN_REQUIRES(mutex_) {
    advance(now);
    garbage.swap(garbage_);
    polled.hint = poll_hint(now);
    polled.over =
        status_.state == PeerState::gone && transfers_.empty() && polled.hint.when == When::idle;
    polled.rested = counters_.started == std::exchange(started_before_, counters_.started);
  });
  mutex_.unlock();
  transport::PollHint& hint = polled.hint;
  if (waiters_ == 0 && (!looked_lately || hint.for_peer)) return polled;
  if (hint.when == When::now || (hint.when == When::at && hint.at < later.at)) {
    hint.when = When::at;
    hint.at = later.at;
    hint.patient = true;
  }
  return polled;
}

bool PeerScheduler::has_work() {
  const base::MutexLock lock(mutex_);
  return !garbage_.empty() || status_.state == PeerState::gone ||
         poll_hint(base::Clock::steady().now()).when != When::idle;
}

void PeerScheduler::wait(const TransferState& transfer, base::Time begin, base::Time limit) {
  const base::Clock& clock = base::Clock::steady();
  const auto is_quiet = [&] { return transfer.quiet.load(std::memory_order_acquire); };
  const auto copy = [&] {
    if (!transfer.by_user.for_waiter()) return;
    while (!is_quiet() && clock.now() < limit && transfer.by_user.make()) continue;
  };
  copy();
  ++looks_;
  ++waiters_;
  for (base::Time now = begin; !is_quiet() && now < limit;) {
    if (mutex_.try_lock()) {
      for (unsigned polls = 0; polls < kPollsPerClockRead && !is_quiet(); ++polls) advance(now);
      const Duration sleep =
          is_quiet() ? Duration::zero() : std::min(time_to_sleep(begin, now), limit - now);
      const bool yields =
          sleep > Duration::zero() && now + sleep - transfer.ending.submitted < kYields;
      if (sleep > Duration::zero() && !yields) {
        ++sleepers_;
        quiet_.wait(mutex_, base::Deadline::in(sleep));
        --sleepers_;
      }
      mutex_.unlock();
      while (yields && !is_quiet() && clock.now() < now + sleep) std::this_thread::yield();
    } else {
      std::this_thread::yield();
    }
    copy();  // what the look above has begun
    if (!is_quiet()) now = clock.now();
  }
  --waiters_;
}

/// Returns how long a waiter may sleep: zero at first, and zero close to the predicted time.
Duration PeerScheduler::time_to_sleep(base::Time begin, base::Time now) {
  if (now - begin < kSpin) return Duration::zero();
  const transport::PollHint next = poll_hint(now);
  if (next.when == When::now) return Duration::zero();
  if (next.when == When::idle) return kMaxWait;  // ended by the thread that reads a message
  const Duration left = next.at - now - kWakeUp;
  return std::clamp<Duration>(left, Duration::zero(), kMaxWait);
}

}  // namespace linkspan::engine
