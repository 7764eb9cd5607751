// copy/cpu_copier.hpp - copies by CPU threads: memcpy, other processes' memory, pageable memory.
//
// start() copies a small order of sealed memory itself: waking an executor takes longer. For the
// same reason the caller of start() may run() a small copy across processes, off its locks, because
// memory of another process may stop answering. start() cuts others into chunks and queues them.
// Executors take chunk after chunk in the order of the orders; the one that ends the last chunk
// publishes the result. For `pageable` an executor has several chunks in flight, one for each
// staging buffer; while its GPU moves none of them it takes chunks that need no buffer. A
// substitute starts when an order still waits for kPatience, and for each executor that is still at
// an aborted order (job_queue.hpp). Threads: start, abort, poll, expected: externally synchronised
// (under its transport's mutex). run: any thread, once for its order. Executors start with the
// first orders and are joined by the destructor. They block on the queue, at most a millisecond
// while the GPU works for them, and on page faults. Invariants: an order's job is reused only after
// poll() has returned its result; once `done` is seen, no executor touches the order or its memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "copy/copier.hpp"
#include "copy/job_queue.hpp"

namespace linkspan::copy {

class StagingStreams;

class CpuCopier final : public Copier {
 public:
  static constexpr unsigned kOrders = 256;
  /// Maximum of a chunk that needs no buffer. Smaller orders are cut into kMinChunks, as long as
  /// each has the minimum.
  static constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;
  static constexpr std::uint64_t kMinChunkBytes = std::uint64_t{256} << 10, kMinChunks = 4;
  /// Minimum of a `pageable` chunk, if a staging buffer is as large; the maximum is a buffer.
  static constexpr std::uint64_t kStagedBytes = std::uint64_t{256} << 10;
  /// Maximum of an order that start() or run() copies.
  static constexpr std::uint64_t kInlineBytes = std::uint64_t{128} << 10;
  static constexpr std::size_t kInlinePieces = 64;
  static constexpr Duration kPatience = std::chrono::milliseconds(10);

  /// Makes a copier without threads and pinned memory. Executors pin their share of `staging` bytes
  /// with their first `pageable` chunks. Tests pass `clock`.
  static Result<std::unique_ptr<CpuCopier>> create(
      unsigned threads, std::size_t staging = std::size_t{64} << 20,
      const base::Clock& clock = base::Clock::steady());
  /// Waits for the chunks that run and drops the queued ones.
  ~CpuCopier() override;
  CpuCopier(const CpuCopier&) = delete;
  CpuCopier& operator=(const CpuCopier&) = delete;

  /// Makes the streams for that GPU ahead, so that its `pageable` orders make nothing that waits
  /// for what is in flight there. `device` must outlive the copier. OFF THE LOCK, any thread.
  Status serve(const cuda::Device& device);

  /// Starts an order of cpu_threads, pageable (needs Order::device, which must outlive the copier)
  /// or cross_process (needs Order::pid and Order::pidfd). The first failure ends the order and
  /// drops the chunks not begun.
  Result<Ticket> start(const Order& order) override;
  /// Returns whether an order of these pieces is copied sooner than an executor wakes up.
  static bool is_small(std::span<const Piece> pieces) noexcept;
  /// OFF THE LOCK. Copies an order that was started with Order::by_caller.
  void run(Ticket ticket) noexcept;
  /// OFF THE LOCK, any thread. Copies a chunk of an order that no executor has begun. Returns false
  /// if there is none. Not for `pageable`.
  bool help(Ticket ticket) noexcept;
  /// Drops the chunks not begun. The order ends as `canceled` if there were any.
  void abort(Ticket ticket) override;
  std::optional<Status> poll(Ticket ticket) override;  ///< Costs one atomic load while it runs.
  base::Time expected(base::Time now) const override;  ///< Time::max() while idle.
  unsigned threads() const noexcept { return max_threads_; }  ///< Maximum number of executors.

 private:
  /// An executor that replaces one that is blocked.
  struct Substitute {
    std::atomic<bool> ended{false};
    std::jthread thread;
  };

  CpuCopier(unsigned threads, std::size_t staging, const base::Clock& clock);

  CpuJob* find(Ticket ticket);
  std::size_t executors_for(const CpuJob& job, std::uint64_t bytes) const noexcept;
  Status start_threads(std::size_t executors);
  std::uint64_t chunk_bytes(Method method, std::uint64_t all) const noexcept;
  /// Runs an executor. One that `replaces` another takes no `pageable` chunks: it has no buffers.
  void execute(const std::stop_token& stop, bool replaces);
  /// Starts the substitutes that JobQueue::reserve_substitutes() asks for, as far as threads can be
  /// made.
  void substitute(const CpuJob* waiting);

  const unsigned max_threads_;
  const std::size_t buffer_bytes_;
  const base::Clock& clock_;
  const std::unique_ptr<StagingStreams> streams_;  // shared with the executors
  std::vector<CpuJob> jobs_;                       // kOrders, never moved
  std::vector<unsigned> free_;                     // indices of jobs_
  std::uint64_t accepted_ = 0;
  base::Time last_due_{};
  JobQueue queue_;
  // Last members: the threads use all of the above.
  std::vector<std::jthread> threads_;
  std::list<Substitute> substitutes_;
};

}  // namespace linkspan::copy
