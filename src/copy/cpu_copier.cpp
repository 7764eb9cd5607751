#include "copy/cpu_copier.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "base/named_thread.hpp"
#include "base/no_memory.hpp"
#include "copy/chooser.hpp"
#include "copy/cpu_job.hpp"
#include "copy/pageable.hpp"

namespace linkspan::copy {
namespace {

/// Interval in which an executor looks for other work while its buffers are with the GPU.
constexpr Duration kBetweenClaims = std::chrono::microseconds(20);

}  // namespace

Result<std::unique_ptr<CpuCopier>> CpuCopier::create(unsigned threads, std::size_t staging,
                                                     const base::Clock& clock) {
  if (threads == 0)
    return Status(Code::invalid_argument, Scope::request, "a copier needs a thread");
  return std::unique_ptr<CpuCopier>(new CpuCopier(threads, staging, clock));
}

CpuCopier::CpuCopier(unsigned threads, std::size_t staging, const base::Clock& clock)
    : max_threads_(threads),
      buffer_bytes_(Staging::buffer_bytes(staging / threads)),
      clock_(clock),
      streams_(std::make_unique<StagingStreams>()),
      jobs_(kOrders) {
  for (unsigned i = kOrders; i > 0; --i) free_.push_back(i - 1);
  threads_.reserve(threads);
}

CpuCopier::~CpuCopier() {
  for (std::jthread& thread : threads_) thread.request_stop();
  for (Substitute& each : substitutes_) each.thread.request_stop();
  {
    const base::MutexLock lock(
        mutex_);  // so that no executor is between its check of the token and its wait
    changed_.notify_all();
  }
}

Status CpuCopier::serve(const cuda::Device& device) {
  return streams_->reserve(device, max_threads_);
}

Result<Ticket> CpuCopier::start(const Order& order) {
  switch (order.method) {
    case Method::cpu_threads:
      break;
    case Method::pageable:
      if (order.device == nullptr)
        return Status(Code::invalid_argument, Scope::request, "a pageable copy needs a device");
      break;
    case Method::cross_process:
      if (order.pid <= 0 || order.pidfd < 0)
        return Status(Code::invalid_argument, Scope::request,
                      "a cross-process copy needs a pid and its pidfd");
      break;
    default:
      return Status(Code::invalid_argument, Scope::request,
                    std::string("CPU threads do not copy by ") + name_of(order.method));
  }
  if (free_.empty()) return Status::no_resource();
  const unsigned index = free_.back();
  std::uint64_t bytes = 0;
  for (const Piece& piece : order.pieces) bytes += piece.bytes;
  Job& job = jobs_[index];
  job.method = order.method;
  job.to_gpu = order.to_gpu;
  job.guarded = order.guarded;
  job.cut(order.pieces, order.method == Method::pageable ? staged_bytes(bytes) : kChunkBytes);
  if (Status s = start_threads(job.chunks.size()); !s.ok()) return s;
  free_.pop_back();

  const base::Time now = clock_.now();
  last_due_ =
      std::max(now, last_due_) + earliest_time(order.method, order.link, bytes, max_threads_);
  job.ticket = ++accepted_ * kOrders + index;
  job.due = last_due_;
  job.last_poll = job.waiting_since = now;
  job.other = {.pid = order.pid, .pidfd = order.pidfd, .proof = order.proof};
  job.remote_is_source = order.remote_is_source;
  job.peer = order.peer;
  job.device = order.device;
  job.ctas = order.ctas;

  const base::MutexLock lock(mutex_);
  job.next = 0;
  job.aborted = false;
  job.left = job.chunks.size();
  job.status = {};
  job.done.store(job.left == 0, std::memory_order_relaxed);
  if (job.left != 0) {
    queue_.push_back(&job);
    unfinished_ += job.left;
    changed_.notify_all();
  }
  return job.ticket;
}

void CpuCopier::abort(Ticket ticket) {
  Job* job = find(ticket);
  if (job == nullptr) return;
  const base::MutexLock lock(mutex_);
  if (job->next < job->chunks.size())
    drop_rest(*job, Status(Code::canceled, Scope::request, "the copy was aborted"));
  if (job->method != Method::pageable && !std::exchange(job->aborted, true)) stuck_ += job->left;
  substitute(stuck_);
}

void CpuCopier::substitute(std::size_t wanted) {
  std::erase_if(substitutes_, [](const Substitute& each) { return each.ended.load(); });
  if (threads_.size() < max_threads_) return;  // start_threads() can start more
  for (; replacing_ < std::min<std::size_t>(wanted, kMaxSubstitutes); ++replacing_) {
    try {
      Substitute& made = substitutes_.emplace_back();
      made.thread = base::named_thread<"ls-copy">([this, &made](const std::stop_token& stop) {
        execute(stop, true);
        made.ended = true;
      });
    } catch (const std::exception&) {  // not enough memory or threads
      std::erase_if(substitutes_, [](const Substitute& each) { return !each.thread.joinable(); });
      return;
    }
  }
}

CpuCopier::Job* CpuCopier::choose(const Staging& staging, bool replaces) {
  Job* beyond = nullptr;
  for (Job* const job : queue_) {
    if (job->method == Method::pageable) {
      if (!replaces && staging.room(*job->device)) return job;
      continue;
    }
    if (is_within_share(*job)) return job;
    if (beyond == nullptr && copying_of_.at(job->peer) < max_threads_) beyond = job;
  }
  return beyond;
}

bool CpuCopier::is_within_share(const Job& job) const {
  if (job.method != Method::cross_process) return true;
  const auto of = copying_of_.find(job.peer);
  return of == copying_of_.end() || of->second < share();
}

std::optional<Status> CpuCopier::poll(Ticket ticket) {
  Job* job = find(ticket);
  if (job == nullptr)
    return Status(Code::internal, Scope::request, "poll of a ticket that is not in flight");
  if (!job->done.load(std::memory_order_acquire)) {
    job->last_poll = clock_.now();
    if (job->last_poll - job->waiting_since >= kPatience) {
      job->waiting_since = job->last_poll;
      const base::MutexLock lock(mutex_);
      if (job->next == 0 && is_within_share(*job)) substitute(stuck_ + beyond_share_);
    }
    return std::nullopt;
  }
  job->ticket = 0;
  free_.push_back(static_cast<unsigned>(ticket % kOrders));
  return std::exchange(job->status, {});
}

base::Time CpuCopier::expected(base::Time now) const {
  base::Time soonest = base::Time::max();
  if (free_.size() == kOrders) return soonest;
  for (const Job& job : jobs_) {
    if (job.ticket == 0) continue;
    if (job.done.load(std::memory_order_relaxed)) return now;
    soonest = std::min(soonest, poll_hint(job.due, job.last_poll));
  }
  return soonest;
}

CpuCopier::Job* CpuCopier::find(Ticket ticket) {
  Job& job = jobs_[ticket % kOrders];
  return ticket != 0 && job.ticket == ticket ? &job : nullptr;
}

/// Starts as many executors as there will be chunks, at most all.
Status CpuCopier::start_threads(std::size_t chunks) {
  if (threads_.size() >= max_threads_) return {};
  {
    const base::MutexLock lock(mutex_);
    chunks += unfinished_;
  }
  const std::size_t wanted = std::min<std::size_t>(chunks, max_threads_);
  try {
    while (threads_.size() < wanted)
      threads_.push_back(base::named_thread<"ls-copy">(
          [this](const std::stop_token& stop) { execute(stop, false); }));
  } catch (const std::exception& error) {
    if (threads_.empty())
      return Status(Code::system, Scope::process, std::string("no thread: ") + error.what());
  }
  return {};
}

/// Returns the chunk size: every executor's buffers get work before one of them gets two rounds.
std::uint64_t CpuCopier::staged_bytes(std::uint64_t all) const noexcept {
  const std::uint64_t least = std::min<std::uint64_t>(kStagedBytes, buffer_bytes_);
  const std::uint64_t share = all / max_threads_ / Staging::kBuffers;
  return std::clamp<std::uint64_t>(share / least * least, least, buffer_bytes_);
}

void CpuCopier::execute(const std::stop_token& stop, bool replaces) {
  PageableCopies staged(buffer_bytes_, *streams_);
  const Staging& staging = staged.staging();
  while (!stop.stop_requested() || !staging.idle()) {
    if (const auto ended = staged.end_one()) {
      finish(jobs_[ended->cookie], ended->status);
    } else if (const auto mine = claim(stop, staging, replaces)) {
      Job& job = *mine->job;
      if (job.method != Method::pageable) {
        finish(job, base::or_no_memory([&] { return job.copy(mine->chunk); }));
        continue;
      }
      const Status begun = base::or_no_memory([&] {
        return staged.begin({.device = job.device,
                             .pieces = job.chunk(mine->chunk),
                             .to_gpu = job.to_gpu,
                             .guarded = job.guarded,
                             .ctas = job.ctas,
                             .cookie = static_cast<std::size_t>(&job - jobs_.data())});
      });
      if (!begun.ok()) finish(job, begun);
    } else if (replaces) {
      return;
    } else {
      const auto soon = base::Deadline::in(kBetweenClaims);
      while (!staging.idle() && !staging.ready() && !soon.passed()) std::this_thread::yield();
    }
  }
}

/// Waits for a chunk. While the GPU works on the executor's buffers it returns nothing after a
/// while, so that they are polled; while all of them are in use it returns chunks that need none.
std::optional<CpuCopier::Claim> CpuCopier::claim(const std::stop_token& stop,
                                                 const Staging& staging, bool replaces) {
  const base::MutexLock lock(mutex_);
  while (true) {
    if (replaces && (stop.stop_requested() || replacing_ > stuck_ + beyond_share_)) {
      --replacing_;
      changed_.notify_all();  // another executor may take the chunks
      return std::nullopt;
    }
    if (Job* const job = stop.stop_requested() ? nullptr : choose(staging, replaces)) {
      try {
        if (job->method == Method::cross_process) copying_of_.try_emplace(job->peer, 0);
      } catch (const std::exception&) {
        drop_rest(*job, base::no_memory());
        continue;
      }
      const std::size_t chunk = job->next++;
      if (job->next == job->chunks.size()) std::erase(queue_, job);
      if (job->method == Method::cross_process && ++copying_of_[job->peer] > share())
        ++beyond_share_;
      return Claim{job, chunk};
    }
    if (staging.idle() && stop.stop_requested()) return std::nullopt;
    const Duration wait = staging.idle() ? std::chrono::minutes(1) : staging.patience();
    if (wait > Duration::zero()) changed_.wait(mutex_, base::Deadline::in(wait));
    if (!staging.idle()) return std::nullopt;
  }
}

void CpuCopier::finish(Job& job, const Status& status) {
  const base::MutexLock lock(mutex_);
  if (!status.ok()) drop_rest(job, status);
  --unfinished_;
  if (job.method != Method::pageable && job.aborted) --stuck_;
  if (job.method == Method::cross_process) {
    const auto of = copying_of_.find(job.peer);
    if (of->second > share()) --beyond_share_;
    if (--of->second == 0) copying_of_.erase(of);
  }
  if (replacing_ > stuck_ + beyond_share_) changed_.notify_all();  // a substitute is one too many
  // Set under the lock, so that abort() does not touch the job afterwards.
  if (--job.left == 0) job.done.store(true, std::memory_order_release);
}

void CpuCopier::drop_rest(Job& job, const Status& why) {
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
