// engine/calls/future_state.hpp - the state behind a Future: its end, its result, and who waits.
//
// Off the path of a byte.
// Threads: any thread. Its lock is acquired under a CallQueue's; a CompletionQueueState's follows.
// Invariants: in a forked child no lock is acquired. finish() succeeds once; status and value are
// set before done() and immutable afterwards.
#pragma once

#include <atomic>
#include <memory>

#include "base/clock.hpp"
#include "base/fork.hpp"
#include "base/mutex.hpp"
#include "engine/transfers/completion_queue.hpp"

namespace linkspan::engine {

class FutureState {
 public:
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  /// Ends the call. Allocates nothing. Returns false if it was done before.
  bool finish(const Status& end, std::shared_ptr<const void> value = nullptr) noexcept
      LINKSPAN_EXCLUDES(mutex_);
  /// Ends the call `canceled` unless it is done. Does nothing in a forked child.
  void cancel() LINKSPAN_EXCLUDES(mutex_);
  /// Returns the final status. pending: the deadline passed first.
  Status wait(base::Deadline deadline) LINKSPAN_EXCLUDES(mutex_);
  /// Returns the result of a call that is done and ok.
  const void* value() const noexcept { return value_.get(); }
  /// Delivers the cookie once the call is done. invalid_argument: it was added before.
  Status attach(std::shared_ptr<CompletionQueueState> queue, std::uint64_t cookie)
      LINKSPAN_EXCLUDES(mutex_);

 private:
  Status usable() const;

  const base::ForkWatch fork_;
  base::Mutex mutex_;
  base::Condition changed_;
  std::atomic<bool> done_{false};
  Status end_;
  std::shared_ptr<const void> value_;  // a T; the user has copies of it
  CompletionEntry completion_;
};

}  // namespace linkspan::engine
