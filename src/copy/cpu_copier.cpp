#include "copy/cpu_copier.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "copy/chooser.hpp"
#include "copy/cma.hpp"
#include "copy/pageable.hpp"

namespace linkspan::copy {

struct CpuCopier::Job {
  // Under the Worker's lock.
  Ticket ticket = 0;  // zero: free
  base::Time due{}, looked{};

  // Written by start() before the job is queued; only read from then on.
  Method method = Method::cpu_threads;
  OtherProcess other;
  bool remote_is_source = false;
  const cuda::Device* device = nullptr;
  std::vector<Piece> pieces;        // cut to the size of a chunk
  std::vector<std::size_t> chunks;  // where each one ends in `pieces`

  // Under CpuCopier::mutex_, which an annotation cannot name from here.
  std::size_t next = 0, left = 0;  // chunk to be taken; chunks that have not ended
  Status status;                   // the first failure

  std::atomic<bool> done{false};  // set last; then it is the Worker's again

  std::span<const Piece> chunk(std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : chunks[i - 1];
    return std::span(pieces).subspan(begin, chunks[i] - begin);
  }
  void cut(std::span<const Piece> whole, std::uint64_t chunk_bytes);
  Status copy(std::size_t i, PageableCopies& pageable) const;
};

void CpuCopier::Job::cut(std::span<const Piece> whole, std::uint64_t chunk_bytes) {
  pieces.clear();
  chunks.clear();
  std::uint64_t filled = 0;
  std::size_t begin = 0;
  for (const Piece& piece : whole) {
    for (std::uint64_t cut = 0; cut < piece.bytes;) {
      const std::uint64_t bytes = std::min(piece.bytes - cut, chunk_bytes);
      if (filled + bytes > chunk_bytes || pieces.size() - begin == kChunkPieces) {
        chunks.push_back(begin = pieces.size());
        filled = 0;
      }
      pieces.push_back({.to = piece.to + cut, .from = piece.from + cut, .bytes = bytes});
      filled += bytes;
      cut += bytes;
    }
  }
  if (pieces.size() != begin) chunks.push_back(pieces.size());
}

Status CpuCopier::Job::copy(std::size_t i, PageableCopies& pageable) const {
  if (method == Method::cross_process) return copy_across(other, remote_is_source, chunk(i));
  if (method == Method::pageable) return pageable.copy(*device, chunk(i));
  for (const Piece& piece : chunk(i))
    std::memcpy(reinterpret_cast<void*>(piece.to),          // NOLINT(performance-no-int-to-ptr)
                reinterpret_cast<const void*>(piece.from),  // NOLINT(performance-no-int-to-ptr)
                piece.bytes);
  return {};
}

Result<std::unique_ptr<CpuCopier>> CpuCopier::create(unsigned threads, const base::Clock& clock) {
  if (threads == 0)
    return Status(Code::invalid_argument, Scope::request, "a copier needs a thread");
  return std::unique_ptr<CpuCopier>(new CpuCopier(threads, clock));
}

CpuCopier::CpuCopier(unsigned threads, const base::Clock& clock)
    : max_threads_(threads), clock_(clock), jobs_(kOrders) {
  for (unsigned i = kOrders; i > 0; --i) free_.push_back(i - 1);
  threads_.reserve(threads);
}

CpuCopier::~CpuCopier() {
  for (std::jthread& thread : threads_) thread.request_stop();
  {
    const base::MutexLock lock(mutex_);  // none is between its look at the token and its wait
    changed_.notify_all();
  }
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
  const unsigned slot = free_.back();
  Job& job = jobs_[slot];
  job.cut(order.pieces, order.method == Method::pageable ? kPageableChunkBytes : kChunkBytes);
  if (Status s = start_threads(job.chunks.size()); !s.ok()) return s;
  free_.pop_back();

  std::uint64_t bytes = 0;
  for (const Piece& piece : order.pieces) bytes += piece.bytes;
  const base::Time now = clock_.now();
  last_due_ =
      std::max(now, last_due_) + earliest_time(order.method, order.link, bytes, max_threads_);
  job.ticket = ++accepted_ * kOrders + slot;
  job.due = last_due_;
  job.looked = now;
  job.method = order.method;
  job.other = {.pid = order.pid, .pidfd = order.pidfd};
  job.remote_is_source = order.remote_is_source;
  job.device = order.device;

  const base::MutexLock lock(mutex_);
  job.next = 0;
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
}

std::optional<Status> CpuCopier::poll(Ticket ticket) {
  Job* job = find(ticket);
  if (job == nullptr)
    return Status(Code::internal, Scope::request, "poll of a ticket that is not in flight");
  if (!job->done.load(std::memory_order_acquire)) {
    job->looked = clock_.now();
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
    soonest = std::min(soonest, next_look(job.due, job.looked));
  }
  return soonest;
}

CpuCopier::Job* CpuCopier::find(Ticket ticket) {
  Job& job = jobs_[ticket % kOrders];
  return ticket != 0 && job.ticket == ticket ? &job : nullptr;
}

/// As many as there will be chunks to work at, at most all.
Status CpuCopier::start_threads(std::size_t chunks) {
  if (threads_.size() == max_threads_) return {};
  {
    const base::MutexLock lock(mutex_);
    chunks += unfinished_;
  }
  const std::size_t wanted = std::min<std::size_t>(chunks, max_threads_);
  try {
    while (threads_.size() < wanted)
      threads_.emplace_back([this](const std::stop_token& stop) { execute(stop); });
  } catch (const std::system_error& error) {
    if (threads_.empty())
      return Status(Code::system, Scope::process, std::string("no thread: ") + error.what());
  }
  return {};
}

void CpuCopier::execute(const std::stop_token& stop) {
  PageableCopies pageable;
  while (const std::optional<Claim> mine = claim(stop))
    finish(*mine->job, mine->job->copy(mine->chunk, pageable));
}

std::optional<CpuCopier::Claim> CpuCopier::claim(const std::stop_token& stop) {
  const base::MutexLock lock(mutex_);
  while (!stop.stop_requested()) {
    if (queue_.empty()) {
      changed_.wait(mutex_, base::Deadline::after(base::Clock::steady(), std::chrono::minutes(1)));
      continue;
    }
    Job& job = *queue_.front();
    const std::size_t chunk = job.next++;
    if (job.next == job.chunks.size()) queue_.pop_front();
    return Claim{&job, chunk};
  }
  return std::nullopt;
}

void CpuCopier::finish(Job& job, const Status& status) {
  const base::MutexLock lock(mutex_);
  if (!status.ok()) drop_rest(job, status);
  --unfinished_;
  // Set under the lock: abort() has then seen the job for the last time.
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
