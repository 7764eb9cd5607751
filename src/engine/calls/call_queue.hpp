// engine/calls/call_queue.hpp - waiting calls that the user does not wait for: runs them on threads
// of the Engine and ends their Futures.
//
// Off the path of a byte.
// Threads: any thread; expire() the ProgressThread. Its lock comes before a FutureState's.
// Invariants: every Future ends: with the call's own result, `timed_out` if the deadline passes
// before a thread is free, or `canceled`. Calls of one target never run at the same time. The
// InterruptCheck of its threads ends the wait of a call whose Future has ended.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/executor.hpp"
#include "engine/calls/future_state.hpp"
#include "engine/progress/progress_thread.hpp"

namespace linkspan::engine {

class CallQueue {
 public:
  static constexpr std::size_t kMaxThreads = 8;  // started as calls need them
  static constexpr std::size_t kMaxCalls = 1024;

  /// Makes the call within that time and finishes its FutureState.
  using Act = std::function<void(FutureState&, Duration)>;

  /// `start_thread` is a base::kThreadNamed. `progress`, which calls expire(), outlives this
  /// object.
  CallQueue(base::Executor::StartThread start_thread, ProgressThread& progress)
      : progress_(progress), executor_(start_thread, kMaxThreads) {}

  /// Queues a call. `target` names in errors what is called, and which calls must not run at the
  /// same time. The FutureState may be done at once, with an error.
  std::shared_ptr<FutureState> start(const std::string& target, Duration timeout, Act act)
      LINKSPAN_EXCLUDES(mutex_);
  /// Ends the calls that no thread has begun by their deadline. Returns when to call it again.
  transport::PollHint expire(base::Time now) LINKSPAN_EXCLUDES(mutex_);
  /// Ends all calls, now and later, with the status `why`.
  void close(const Status& why) LINKSPAN_EXCLUDES(mutex_);
  /// Joins the threads. Called after close(). Returns false if one has not returned by the
  /// deadline.
  bool end(base::Deadline deadline) { return executor_.end(deadline); }

 private:
  using Strand = base::Executor::Strand;
  struct Call {
    std::shared_ptr<FutureState> state;  // also the Futures'
    std::string target;
    base::Deadline deadline;
    bool begun = false;

    bool waits() const noexcept { return !begun && !state->done(); }
    Status timed_out() const;
  };

  std::shared_ptr<Strand> strand_of(const std::string& target) LINKSPAN_REQUIRES(mutex_);
  void run(std::uint64_t id, const Act& act) LINKSPAN_EXCLUDES(mutex_);
  const Call& begin(std::uint64_t id) LINKSPAN_EXCLUDES(mutex_);
  void forget(std::uint64_t id) LINKSPAN_EXCLUDES(mutex_);

  ProgressThread& progress_;
  const Status no_memory_{Code::system, Scope::process, "out of memory"};
  base::Mutex mutex_;
  Status closed_ LINKSPAN_GUARDED_BY(mutex_);  // ok until close()
  std::uint64_t last_id_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, Call> calls_ LINKSPAN_GUARDED_BY(mutex_);  // until their tasks have run
  std::map<std::string, std::weak_ptr<Strand>> strands_ LINKSPAN_GUARDED_BY(mutex_);  // by target
  std::atomic<base::Time> next_expiry_{base::Time::max()};  // written under mutex_
  base::Executor executor_;
};

/// The calls of one Engine. Each kind has threads of its own: a host that does not answer delays no
/// lookup, and a region that stays busy delays neither.
struct AsyncCalls {
  explicit AsyncCalls(ProgressThread& progress)
      : connects(base::kThreadNamed<"ls-connect">, progress),
        lookups(base::kThreadNamed<"ls-lookup">, progress),
        deregistrations(base::kThreadNamed<"ls-deregister">, progress) {}

  transport::PollHint expire(base::Time now);  ///< Calls expire() of each.
  void close(const Status& why);               ///< Calls close() of each.
  bool end(base::Deadline deadline);           ///< Calls end() of each. True: all threads ended.

  CallQueue connects, lookups, deregistrations;
};

}  // namespace linkspan::engine
