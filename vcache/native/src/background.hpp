// vcache/native/src/background.hpp - runs the transfers of nvlink_transfer_begin().
//
// One thread, started by the first transfer, polls each transfer: it waits until the caller's
// stream has reached it, then submits piece after piece. So no work is on a GPU before the caller's
// stream has come that far, and a transfer that ends early leaves at most two pieces to finish.
// Another thread closes handles after the end was reported, because closing may wait for the
// caller's streams. Never destroyed: call end(), or let the process end. Threads: any thread.
// Invariants: a job whose `code` is not NOT_READY touches no memory; each job is counted once.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <thread>

#include "base/clock.hpp"
#include "cuda/deferred_destroyer.hpp"
#include "vcache/native/src/copy.hpp"

namespace linkspan::nvlink {

class Background {
 public:
  static constexpr std::size_t kActive = 16, kKept = 65536;
  using Ended = void (*)(const Copy& copy, int code);

  /// Calls `ended` for each transfer that ended, on the thread of this object.
  explicit Background(Ended ended) : ended_(ended) {}
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  ~Background() = delete;
  /// Submits no more pieces, waits for those submitted, and joins the thread. Must not be called in
  /// a forked child, which does not have the thread.
  void end() LINKSPAN_EXCLUDES(mutex_);

  /// Starts a transfer after the work now in `stream`. A `timeout` of zero means no deadline.
  Outcome begin(Copy copy, cuda::CUstream stream, Duration timeout, std::uint64_t& id)
      LINKSPAN_EXCLUDES(mutex_);
  /// Waits at most `wait`. Returns false for an unknown id. The end of a transfer is reported once.
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
  std::list<std::shared_ptr<Job>> active_ LINKSPAN_GUARDED_BY(mutex_);  // in order; not over
  std::uint64_t last_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  bool ending_ LINKSPAN_GUARDED_BY(mutex_) = false;
  std::jthread thread_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::nvlink
