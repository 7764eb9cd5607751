// copy/cpu_copier.hpp - copies by CPU threads: memcpy, other processes' memory, pageable memory.
//
// Nothing here runs under the scheduler's lock but the bookkeeping: start() cuts an order into
// chunks and queues it, executors take chunk after chunk, in the order of the orders, and who ends
// the last one publishes the end. Of `pageable` an executor has several chunks in hand, one a
// staging index; while its GPU does not move them it takes what needs no index.
// Threads: start, abort, poll, expected: externally synchronised (under the scheduler's lock). The
// executors are ours: started with the first orders, joined by the destructor; they block on the
// queue, at most a millisecond while the GPU works for them, and on page faults.
// Memory of another process may never answer a page fault. So cross-process copies of one peer take
// more than half of the executors only while no other order waits. Where one waits all the same,
// for kPatience, and for each executor that is still at an order which was aborted, a substitute
// starts, kMaxSubstitutes at most. It ends when the executors have come back.
// Invariants: an order's index is reused only after poll() told its end; when `done` is seen, no
// executor will touch the order or its memory again.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "copy/copier.hpp"

namespace linkspan::copy {

class Staging;
class StagingStreams;

class CpuCopier final : public Copier {
 public:
  static constexpr unsigned kOrders = 256;
  static constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;
  /// Of `pageable`, at least, while a index is as large; at most a index.
  static constexpr std::uint64_t kStagedBytes = std::uint64_t{256} << 10;
  static constexpr std::size_t kChunkPieces = 4096;  ///< A chunk has at most.
  static constexpr unsigned kMaxSubstitutes = 64;
  static constexpr Duration kPatience = std::chrono::milliseconds(10);

  /// Starts no thread yet, and pins nothing: executors pin their parts of `staging` bytes with
  /// their first `pageable` chunks. `clock` is for tests.
  static Result<std::unique_ptr<CpuCopier>> create(
      unsigned threads, std::size_t staging = std::size_t{64} << 20,
      const base::Clock& clock = base::Clock::steady());
  /// Waits for the chunks that run; what is queued behind them is dropped.
  ~CpuCopier() override;
  CpuCopier(const CpuCopier&) = delete;
  CpuCopier& operator=(const CpuCopier&) = delete;

  /// OFF THE LOCK, any thread. `pageable` orders of that GPU, which outlives the copier, make
  /// nothing that may wait for what is in flight there.
  Status serve(const cuda::Device& device);

  /// cpu_threads, pageable (needs Order::device, which outlives the copier) and cross_process
  /// (needs Order::pid and Order::pidfd). The first failure ends an order: chunks not begun by
  /// then are dropped.
  Result<Ticket> start(const Order& order) override;
  /// Chunks not begun are dropped. `canceled` if there were any.
  void abort(Ticket ticket) override;
  std::optional<Status> poll(Ticket ticket) override;  ///< One atomic load while it runs.
  base::Time expected(base::Time now) const override;  ///< Time::max(): nothing is in flight.
  unsigned threads() const noexcept { return max_threads_; }  ///< At most.

 private:
  struct Job;
  struct Claim {
    Job* job;
    std::size_t chunk;
  };
  /// An executor in the place of one that stands still.
  struct Substitute {
    std::atomic<bool> ended{false};
    std::jthread thread;
  };

  CpuCopier(unsigned threads, std::size_t staging, const base::Clock& clock);

  Job* find(Ticket ticket);
  Status start_threads(std::size_t chunks);
  std::uint64_t staged_bytes(std::uint64_t all) const noexcept;
  /// An executor that `replaces` another takes no `pageable` chunks: it has no slots.
  void execute(const std::stop_token& stop, bool replaces);
  std::optional<Claim> claim(const std::stop_token& stop, const Staging& staging, bool replaces);
  void finish(Job& job, const Status& status);
  void drop_rest(Job& job, const Status& why) LINKSPAN_REQUIRES(mutex_);
  /// Returns the first queued order of which an executor may take a chunk, or nullptr.
  Job* choose(const Staging& staging, bool replaces) LINKSPAN_REQUIRES(mutex_);
  bool is_within_share(const Job& job) const LINKSPAN_REQUIRES(mutex_);
  unsigned share() const noexcept { return max_threads_ < 2 ? 1 : max_threads_ / 2; }
  /// Starts substitutes until there are `wanted`, if threads are to be had.
  void substitute(std::size_t wanted) LINKSPAN_REQUIRES(mutex_);

  const unsigned max_threads_;
  const std::size_t buffer_bytes_;
  const base::Clock& clock_;
  const std::unique_ptr<StagingStreams> streams_;  // also of the executors
  std::vector<Job> jobs_;                          // kOrders, never moved
  std::vector<unsigned> free_;                     // indices of jobs_
  std::uint64_t accepted_ = 0;
  base::Time last_due_{};

  base::Mutex mutex_;
  base::Condition changed_;
  std::deque<Job*> queue_ LINKSPAN_GUARDED_BY(mutex_);      // have chunks that no one has taken
  std::size_t unfinished_ LINKSPAN_GUARDED_BY(mutex_) = 0;  // chunks, queued or running
  /// Executors that copy across, by peer; those beyond a peer's share; those at aborted orders.
  std::map<std::uint64_t, unsigned> copying_of_ LINKSPAN_GUARDED_BY(mutex_);
  std::size_t beyond_share_ LINKSPAN_GUARDED_BY(mutex_) = 0, stuck_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  std::size_t replacing_ LINKSPAN_GUARDED_BY(mutex_) = 0;  // of substitutes_, those that go on
  // Last: they use all of the above.
  std::vector<std::jthread> threads_;
  std::list<Substitute> substitutes_;
};

}  // namespace linkspan::copy
