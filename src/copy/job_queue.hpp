// copy/job_queue.hpp - the queue from which the executors of a CpuCopier claim chunks.
//
// On the path of a byte: start() adds an order, executors claim its chunks, in the order of the
// orders, and finish them. Cross-process copies of one peer get more than half of the executors
// only while no other order waits: memory of another process may never answer a page fault. For
// each executor beyond that share, and for each that is still at an aborted order, a substitute may
// be reserved, at most kMaxSubstitutes. It ends when the executors have returned.
// Threads: any thread. One thread at a time adds, aborts and reserves.
// Invariants: a job is in the queue while it has chunks that were not begun. Once its `done` is set
// the queue does not touch it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "base/mutex.hpp"
#include "copy/copier.hpp"

namespace linkspan::copy {

class Staging;

/// Copies within this process. Requires memory whose every access succeeds.
void copy_here(const Piece& piece) noexcept;

/// An order, cut into the chunks that executors copy.
struct CpuJob {
  static constexpr std::size_t kChunkPieces = 4096;  ///< Maximum of a chunk.

  // Under the transport's mutex.
  Ticket ticket = 0;              // zero: unused
  base::Time due{}, last_poll{};  // `due` is zero: its caller copies it at once
  base::Time waiting_since{};     // since when it waits for an executor

  // Written by start() before the job is queued; only read from then on.
  Order order;                      // without its pieces
  std::vector<Piece> pieces;        // cut to the size of a chunk
  std::vector<std::size_t> chunks;  // where each one ends in `pieces`

  // Under JobQueue::mutex_, which an annotation cannot name from here.
  std::size_t next = 0, left = 0;  // next chunk to begin; chunks that have not ended
  bool aborted = false;            // its chunks that run are counted as stuck
  Status status;                   // the first failure

  std::atomic<bool> done{false};  // set last; poll() owns the job then

  std::span<const Piece> chunk(std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : chunks[i - 1];
    return std::span(pieces).subspan(begin, chunks[i] - begin);
  }
  /// Keeps the order. Cuts its pieces into chunks that are as full as possible: a staging buffer
  /// has room for one chunk.
  void cut(const Order& whole, std::uint64_t chunk_bytes);
  /// Prepares a job whose chunks the queue does not get.
  void begin_unqueued();
  Status copy(std::size_t i) const;  ///< Copies a chunk by the CPU.
};

class JobQueue {
 public:
  static constexpr std::size_t kMaxSubstitutes = 64;
  struct Claim {
    CpuJob* job;
    std::size_t chunk;
  };

  explicit JobQueue(unsigned executors);

  /// Queues a job that was cut into chunks. A job without chunks is done at once. Wakes one
  /// executor, because a call takes microseconds; each that finds more than a few chunks calls two.
  void add(CpuJob& job);
  /// Drops the chunks not begun; the job ends as `canceled` if there were any.
  void abort(CpuJob& job);
  /// Waits for a chunk. While the GPU works on the executor's buffers it returns nothing after a
  /// while, so that they are polled; while all of them are in use it returns chunks that need none.
  /// An executor that `replaces` another gets no `pageable` chunks; nothing: it ends.
  std::optional<Claim> claim(const std::stop_token& stop, const Staging& staging, bool replaces);
  /// Claims a chunk of that order for a thread that is no executor; nothing: none is left.
  std::optional<Claim> claim_of(Ticket ticket);
  /// Ends a chunk that was claimed. The first failure drops the job's chunks not begun.
  void finish(CpuJob& job, const Status& status, bool by_executor = true);
  /// Wakes all executors that wait for a chunk.
  void wake_all();

  /// Returns how many substitutes the caller is to start: for executors at aborted jobs and, if
  /// `waiting` may begin and has not, for those beyond a share.
  std::size_t reserve_substitutes(const CpuJob* waiting);
  /// Takes the reservation of substitutes back that were not started.
  void cancel_substitutes(std::size_t count);
  /// Returns the number of chunks, queued or running.
  std::size_t unfinished() const;

 private:
  unsigned share() const noexcept { return executors_ < 2 ? 1 : executors_ / 2; }
  void drop_rest(CpuJob& job, const Status& why) LINKSPAN_REQUIRES(mutex_);
  void wake(std::size_t most) LINKSPAN_REQUIRES(mutex_);
  void rest() LINKSPAN_REQUIRES(mutex_);
  bool has_more(const CpuJob& taken) const LINKSPAN_REQUIRES(mutex_);
  /// Takes the next chunk of a queued job.
  Claim take_chunk(CpuJob& job) LINKSPAN_REQUIRES(mutex_);
  /// Returns the first queued job of which an executor may take a chunk, or null.
  CpuJob* choose(const Staging& staging, bool replaces) LINKSPAN_REQUIRES(mutex_);
  bool is_within_share(const CpuJob& job) const LINKSPAN_REQUIRES(mutex_);

  const unsigned executors_;  // without substitutes
  mutable base::Mutex mutex_;
  base::Condition changed_;  // waited on by substitutes and where a staging buffer is in use
  std::vector<base::Condition> calls_;                                 // one for each executor
  std::vector<base::Condition*> resting_ LINKSPAN_GUARDED_BY(mutex_);  // of those without work
  std::vector<base::Condition*> spare_ LINKSPAN_GUARDED_BY(mutex_);    // of the others
  std::deque<CpuJob*> queue_ LINKSPAN_GUARDED_BY(mutex_);
  std::size_t unfinished_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  /// Executors that copy across, by peer; those beyond a peer's share; those at aborted jobs.
  std::map<std::uint64_t, unsigned> copying_of_ LINKSPAN_GUARDED_BY(mutex_);
  std::size_t beyond_share_ LINKSPAN_GUARDED_BY(mutex_) = 0, stuck_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  std::size_t replacing_ LINKSPAN_GUARDED_BY(mutex_) = 0;  // substitutes that continue
};

}  // namespace linkspan::copy
