#include "copy/job_queue.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "base/no_memory.hpp"
#include "copy/cma.hpp"
#include "copy/pageable.hpp"

namespace linkspan::copy {
namespace {

constexpr Duration kRest = std::chrono::minutes(1);  // of an executor without work
/// Chunks that are left to the executors and waiters that are awake.
constexpr std::size_t kFewChunks = 4;

}  // namespace

JobQueue::JobQueue(unsigned executors) : executors_(executors), calls_(executors) {
  resting_.reserve(executors);
  spare_.reserve(executors);
  for (base::Condition& each : calls_) spare_.push_back(&each);
}

void copy_here(const Piece& piece) noexcept {
  std::memcpy(reinterpret_cast<void*>(piece.to),          // NOLINT(performance-no-int-to-ptr)
              reinterpret_cast<const void*>(piece.from),  // NOLINT(performance-no-int-to-ptr)
              piece.bytes);
}

void CpuJob::cut(const Order& whole, std::uint64_t chunk_bytes) {
  order = whole;
  order.pieces = {};
  pieces.clear();
  chunks.clear();
  const bool staged = order.method == Method::pageable;
  const std::size_t most = staged ? Staging::kRuns : kChunkPieces;
  std::uint64_t filled = 0;
  std::size_t runs = 0;
  for (const Piece& piece : whole.pieces) {
    for (std::uint64_t cut = 0; cut < piece.bytes;) {
      Piece part{.to = piece.to + cut, .from = piece.from + cut, .bytes = 0};
      const bool joined =
          staged && filled != 0 && PageableCopies::joins(pieces.back(), part, order.to_gpu);
      if (filled == chunk_bytes || (runs == most && !joined)) {
        chunks.push_back(pieces.size());
        filled = runs = 0;
      }
      if (filled == 0 || !joined) ++runs;
      part.bytes = std::min(piece.bytes - cut, chunk_bytes - filled);
      pieces.push_back(part);
      filled += part.bytes;
      cut += part.bytes;
    }
  }
  if (filled != 0) chunks.push_back(pieces.size());
}

void CpuJob::begin_unqueued() {
  due = last_poll = waiting_since = {};
  next = chunks.size();
  left = 0;
  aborted = false;
  done.store(false, std::memory_order_relaxed);
}

Status CpuJob::copy(std::size_t i) const {
  if (order.method == Method::cross_process)
    return copy_across(
        {.pid = order.pid, .pidfd = order.pidfd, .proof = order.proof, .prompt = order.prompt},
        order.remote_is_source, chunk(i));
  if (order.guarded) return copy_within(chunk(i));
  for (const Piece& piece : chunk(i)) copy_here(piece);
  return {};
}

void JobQueue::add(CpuJob& job) {
  const base::MutexLock lock(mutex_);
  job.next = 0;
  job.aborted = false;
  job.left = job.chunks.size();
  job.status = {};
  job.done.store(job.left == 0, std::memory_order_relaxed);
  if (job.left == 0) return;
  queue_.push_back(&job);
  unfinished_ += job.left;
  wake(1);
}

/// Wakes at most `most` of the executors that rest, the one that came last first.
void JobQueue::wake(std::size_t most) {
  for (; most != 0 && !resting_.empty(); --most) {
    resting_.back()->notify_all();
    resting_.pop_back();
  }
  if (most != 0 || replacing_ != 0) changed_.notify_all();
}

/// Waits until wake() calls this executor. Some time may pass without.
void JobQueue::rest() {
  base::Condition& called = *spare_.back();
  spare_.pop_back();
  resting_.push_back(&called);
  called.wait(mutex_, base::Deadline::in(kRest));
  std::erase(resting_, &called);
  spare_.push_back(&called);
}

/// Returns whether the queue has chunks for executors that rest, after one was taken. The memory of
/// a peer may not answer, so a job never waits for an executor that has taken a chunk of another.
bool JobQueue::has_more(const CpuJob& taken) const {
  if (queue_.size() != 1 || queue_.front() != &taken) return !queue_.empty();
  return taken.order.method == Method::pageable || taken.chunks.size() - taken.next >= kFewChunks;
}

void JobQueue::abort(CpuJob& job) {
  const base::MutexLock lock(mutex_);
  if (job.next < job.chunks.size())
    drop_rest(job, Status(Code::canceled, Scope::request, "the copy was aborted"));
  if (job.order.method != Method::pageable && !std::exchange(job.aborted, true)) stuck_ += job.left;
}

std::size_t JobQueue::reserve_substitutes(const CpuJob* waiting) {
  const base::MutexLock lock(mutex_);
  if (waiting != nullptr && (waiting->next != 0 || !is_within_share(*waiting))) return 0;
  const std::size_t wanted = stuck_ + (waiting != nullptr ? beyond_share_ : 0);
  const std::size_t missing = std::max(replacing_, std::min(wanted, kMaxSubstitutes)) - replacing_;
  replacing_ += missing;
  return missing;
}

void JobQueue::cancel_substitutes(std::size_t count) {
  const base::MutexLock lock(mutex_);
  replacing_ -= count;
}

std::size_t JobQueue::unfinished() const {
  const base::MutexLock lock(mutex_);
  return unfinished_;
}

void JobQueue::wake_all() {
  const base::MutexLock lock(mutex_);  // no executor is between its check of the token and its wait
  for (base::Condition* const each : resting_) each->notify_all();
  changed_.notify_all();
}

CpuJob* JobQueue::choose(const Staging& staging, bool replaces) {
  CpuJob* beyond = nullptr;
  for (CpuJob* const job : queue_) {
    if (job->order.method == Method::pageable) {
      if (!replaces && staging.room(*job->order.device)) return job;
      continue;
    }
    if (is_within_share(*job)) return job;
    if (beyond == nullptr && copying_of_.at(job->order.peer) < executors_) beyond = job;
  }
  return beyond;
}

bool JobQueue::is_within_share(const CpuJob& job) const {
  if (job.order.method != Method::cross_process) return true;
  const auto of = copying_of_.find(job.order.peer);
  return of == copying_of_.end() || of->second < share();
}

std::optional<JobQueue::Claim> JobQueue::claim(const std::stop_token& stop, const Staging& staging,
                                               bool replaces) {
  const base::MutexLock lock(mutex_);
  while (true) {
    if (replaces && (stop.stop_requested() || replacing_ > stuck_ + beyond_share_)) {
      --replacing_;
      wake(1);                // an executor that rests may take the chunks now
      changed_.notify_all();  // so may one that waits for its buffers
      return std::nullopt;
    }
    if (CpuJob* const job = stop.stop_requested() ? nullptr : choose(staging, replaces)) {
      const bool across = job->order.method == Method::cross_process;
      try {
        if (across) copying_of_.try_emplace(job->order.peer, 0);
      } catch (const std::exception&) {
        drop_rest(*job, base::no_memory());
        continue;
      }
      if (across && ++copying_of_[job->order.peer] > share()) ++beyond_share_;
      const Claim claimed = take_chunk(*job);
      if (has_more(*job)) wake(2);
      return claimed;
    }
    if (staging.idle() && stop.stop_requested()) return std::nullopt;
    if (staging.idle() && !replaces) {
      rest();
      continue;
    }
    const Duration wait = staging.idle() ? kRest : staging.patience();
    if (wait > Duration::zero()) changed_.wait(mutex_, base::Deadline::in(wait));
    if (!staging.idle()) return std::nullopt;
  }
}

std::optional<JobQueue::Claim> JobQueue::claim_of(Ticket ticket) {
  const base::MutexLock lock(mutex_);
  const auto found = std::ranges::find(queue_, ticket, &CpuJob::ticket);
  if (found == queue_.end()) return std::nullopt;
  return take_chunk(**found);
}

JobQueue::Claim JobQueue::take_chunk(CpuJob& job) {
  const std::size_t chunk = job.next++;
  if (job.next == job.chunks.size()) std::erase(queue_, &job);
  return {&job, chunk};
}

void JobQueue::finish(CpuJob& job, const Status& status, bool by_executor) {
  const base::MutexLock lock(mutex_);
  if (!status.ok()) drop_rest(job, status);
  --unfinished_;
  if (job.order.method != Method::pageable && job.aborted) --stuck_;
  if (by_executor && job.order.method == Method::cross_process) {
    const auto of = copying_of_.find(job.order.peer);
    if (of->second > share()) --beyond_share_;
    if (--of->second == 0) copying_of_.erase(of);
  }
  if (replacing_ > stuck_ + beyond_share_) changed_.notify_all();  // a substitute is one too many
  // Set under the lock, so that abort() does not touch the job afterwards.
  if (--job.left == 0) job.done.store(true, std::memory_order_release);
}

void JobQueue::drop_rest(CpuJob& job, const Status& why) {
  if (job.status.ok()) job.status = why;
  if (job.next == job.chunks.size()) return;
  const std::size_t dropped = job.chunks.size() - job.next;
  job.next = job.chunks.size();
  job.left -= dropped;
  unfinished_ -= dropped;
  std::erase(queue_, &job);
  if (job.left == 0) job.done.store(true, std::memory_order_release);
}

}  // namespace linkspan::copy
