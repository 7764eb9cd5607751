// vcache/native/src/background.hpp - transfers that nobody waits for.
//
// One thread, which starts with the first of them, asks each in turn whether its stream has come by
// and whether its pieces have ended, and submits the next. So nothing of a transfer is on a GPU
// before the caller's stream has come by, and what ends early leaves at most two pieces to finish.
// Handles are closed on another thread, after the end was told: a stream of the caller's that
// stands still would hold up the closing. Never destroyed: end() it, or let the process end.
// Threads: any thread.
// Invariants: a job whose `code` is not NOT_READY touches no memory; each is counted once.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "cuda/deferred_destroyer.hpp"
#include "vcache/native/src/copy.hpp"

namespace linkspan::nvlink {

class Background {
 public:
  static constexpr std::size_t kActive = 16, kKept = 65536;
  using Ended = void (*)(const Copy& copy, int code);

  /// `ended` is told of each transfer on the thread here.
  explicit Background(Ended ended) : ended_(ended) {}
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  ~Background() = delete;
  /// Begins no more pieces, ends all that is begun, and joins the thread. Not in a forked child,
  /// which has no such thread.
  void end() LINKSPAN_EXCLUDES(mutex_);

  /// Follows `stream` as it stands now. `timeout` zero: no deadline.
  Outcome begin(Copy copy, cuda::CUstream stream, Duration timeout, std::uint64_t& id)
      LINKSPAN_EXCLUDES(mutex_);
  /// False: no such number. The end of what is over is told once.
  bool test(std::uint64_t id, Duration wait, Outcome& end, std::uint64_t& done)
      LINKSPAN_EXCLUDES(mutex_);
  bool cancel(std::uint64_t id) LINKSPAN_EXCLUDES(mutex_);

 private:
  class Job;

  void loop() LINKSPAN_EXCLUDES(mutex_);

  const Ended ended_;
  cuda::DeferredDestroyer destroyer_;
  base::Mutex mutex_;
  base::Condition changed_;
  std::map<std::uint64_t, std::shared_ptr<Job>> jobs_ LINKSPAN_GUARDED_BY(mutex_);  // and active_
  std::vector<std::shared_ptr<Job>> active_ LINKSPAN_GUARDED_BY(mutex_);  // in order; not over
  std::uint64_t last_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  bool ending_ LINKSPAN_GUARDED_BY(mutex_) = false;
  std::jthread thread_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::nvlink
