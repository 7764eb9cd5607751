#include "copy/cpu_copier.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <utility>

#include "base/named_thread.hpp"
#include "base/no_memory.hpp"
#include "copy/chooser.hpp"
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
      jobs_(kOrders),
      queue_(threads) {
  for (unsigned i = kOrders; i > 0; --i) free_.push_back(i - 1);
  threads_.reserve(threads);
}

CpuCopier::~CpuCopier() {
  for (std::jthread& thread : threads_) thread.request_stop();
  for (Substitute& each : substitutes_) each.thread.request_stop();
  queue_.wake_all();
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
  CpuJob& job = jobs_[index];
  job.cut(order, chunk_bytes(order.method, bytes));
  const bool here = !order.by_caller && order.method == Method::cpu_threads && order.sealed &&
                    is_small(order.pieces);
  const bool queued = !here && !order.by_caller;
  if (Status s = queued ? start_threads(executors_for(job, bytes)) : Status(); !s.ok()) return s;
  free_.pop_back();
  job.ticket = ++accepted_ * kOrders + index;
  if (!queued) {
    job.begin_unqueued();
    if (here) run(job.ticket);
    return job.ticket;
  }
  const base::Time now = clock_.now();
  last_due_ =
      std::max(now, last_due_) + earliest_time(order.method, order.link, bytes, max_threads_);
  job.due = last_due_;
  job.last_poll = job.waiting_since = now;
  try {
    queue_.add(job);
  } catch (...) {
    job.ticket = 0;
    free_.push_back(index);
    throw;
  }
  return job.ticket;
}

bool CpuCopier::is_small(std::span<const Piece> pieces) noexcept {
  std::uint64_t bytes = 0;
  for (const Piece& piece : pieces.first(std::min(pieces.size(), kInlinePieces)))
    bytes += piece.bytes;
  return pieces.size() <= kInlinePieces && bytes <= kInlineBytes && bytes != 0;
}

void CpuCopier::run(Ticket ticket) noexcept {
  CpuJob& job = jobs_[ticket % kOrders];
  job.status = base::or_no_memory([&] { return job.copy(0); });  // the only chunk
  job.done.store(true, std::memory_order_release);
}

bool CpuCopier::help(Ticket ticket) noexcept {
  const auto mine = queue_.claim_of(ticket);
  if (mine)
    queue_.finish(*mine->job, base::or_no_memory([&] { return mine->job->copy(mine->chunk); }),
                  false);
  return mine.has_value();
}

void CpuCopier::abort(Ticket ticket) {
  CpuJob* const job = find(ticket);
  if (job == nullptr) return;
  queue_.abort(*job);
  substitute(nullptr);
}

void CpuCopier::substitute(const CpuJob* waiting) {
  std::erase_if(substitutes_, [](const Substitute& each) { return each.ended.load(); });
  if (threads_.size() < max_threads_) return;  // start_threads() can start more
  for (std::size_t missing = queue_.reserve_substitutes(waiting); missing > 0; --missing) {
    try {
      Substitute& made = substitutes_.emplace_back();
      made.thread = base::named_thread<"ls-copy">([this, &made](const std::stop_token& stop) {
        execute(stop, true);
        made.ended = true;
      });
    } catch (const std::exception&) {  // not enough memory or threads
      std::erase_if(substitutes_, [](const Substitute& each) { return !each.thread.joinable(); });
      return queue_.cancel_substitutes(missing);
    }
  }
}

std::optional<Status> CpuCopier::poll(Ticket ticket) {
  CpuJob* const job = find(ticket);
  if (job == nullptr)
    return Status(Code::internal, Scope::request, "poll of a ticket that is not in flight");
  if (!job->done.load(std::memory_order_acquire)) {
    job->last_poll = clock_.now();
    if (job->last_poll - job->waiting_since >= kPatience) {
      job->waiting_since = job->last_poll;
      substitute(job);
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
  for (const CpuJob& job : jobs_) {
    if (job.ticket == 0) continue;
    const bool by_caller = job.due == base::Time{};
    if (by_caller || job.done.load(std::memory_order_relaxed)) return now;
    soonest = std::min(soonest, poll_hint(job.due, job.last_poll));
  }
  return soonest;
}

CpuJob* CpuCopier::find(Ticket ticket) {
  CpuJob& job = jobs_[ticket % kOrders];
  return ticket != 0 && job.ticket == ticket ? &job : nullptr;
}

/// Returns how many executors a job is worth: its waiter helps, and begins at once.
std::size_t CpuCopier::executors_for(const CpuJob& job, std::uint64_t bytes) const noexcept {
  if (job.order.method == Method::pageable) return job.chunks.size();
  return std::min<std::uint64_t>(job.chunks.size(), bytes / kChunkBytes + 1);
}

/// Starts as many executors as there is work for, at most all.
Status CpuCopier::start_threads(std::size_t executors) {
  if (threads_.size() >= max_threads_) return {};
  const std::size_t wanted = std::min<std::size_t>(executors + queue_.unfinished(), max_threads_);
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

/// Returns the size of a chunk. A medium order becomes a few, so that an executor that wakes up
/// finds some left by the waiter. Of `pageable` ones every executor's buffers get some before one
/// of them gets two rounds.
std::uint64_t CpuCopier::chunk_bytes(Method method, std::uint64_t all) const noexcept {
  if (method != Method::pageable)
    return std::clamp(all / kMinChunks / kMinChunkBytes * kMinChunkBytes, kMinChunkBytes,
                      kChunkBytes);
  const std::uint64_t least = std::min<std::uint64_t>(kStagedBytes, buffer_bytes_);
  const std::uint64_t share = all / max_threads_ / Staging::kBuffers;
  return std::clamp<std::uint64_t>(share / least * least, least, buffer_bytes_);
}

void CpuCopier::execute(const std::stop_token& stop, bool replaces) {
  PageableCopies staged(buffer_bytes_, *streams_);
  const Staging& staging = staged.staging();
  while (!stop.stop_requested() || !staging.idle()) {
    if (const auto ended = staged.end_one()) {
      queue_.finish(jobs_[ended->cookie], ended->status);
    } else if (const auto mine = queue_.claim(stop, staging, replaces)) {
      CpuJob& job = *mine->job;
      if (job.order.method != Method::pageable) {
        queue_.finish(job, base::or_no_memory([&] { return job.copy(mine->chunk); }));
        continue;
      }
      const Status begun = base::or_no_memory([&] {
        return staged.begin({.order = &job.order,
                             .pieces = job.chunk(mine->chunk),
                             .cookie = static_cast<std::size_t>(&job - jobs_.data())});
      });
      if (!begun.ok()) queue_.finish(job, begun);
    } else if (replaces) {
      return;
    } else {
      const auto soon = base::Deadline::in(kBetweenClaims);
      while (!staging.idle() && !staging.ready() && !soon.passed()) std::this_thread::yield();
    }
  }
}

}  // namespace linkspan::copy
