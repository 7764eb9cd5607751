// base/executor.hpp - runs tasks on named threads of its own: work that may take long, or not
// return, and so must not be done under a lock or by a thread that serves peers.
//
// Off the path of a byte: what is opened, closed or written for others.
// Threads: any thread, also a task. Threads start with the tasks that need them, at most as many as
// the Executor may have, and block every signal: those are for the program's threads.
// Invariants: each task runs exactly once; tasks without a Strand begin in order; tasks of one
// Strand never run at the same time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "base/clock.hpp"
#include "base/named_thread.hpp"

namespace linkspan::base {

class Executor {
 public:
  using Task = std::function<void()>;
  using StartThread = std::jthread (*)(Task);

  /// Keeps tasks apart that must not run at the same time, such as those of one process.
  class Strand {
    friend class Executor;
    bool busy_ = false;  // under the lock of the one Executor that it is used with
  };

  /// Starts no thread yet. `start` is a kThreadNamed<"ls-...">.
  explicit Executor(StartThread start, std::size_t max_threads = 1);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  ~Executor();  ///< Calls end().

  /// Queues `task`; runs it here where no thread or memory can be had, and after the end.
  void run(Task task);
  /// As run(), but where no thread can be had, and after the end, returns false and keeps `task`.
  /// Throws std::bad_alloc where there is no memory to queue it, and keeps `task` then too.
  bool try_run(Task& task, std::shared_ptr<Strand> strand = nullptr);
  /// Runs what is queued, and what that brings, and joins the threads: each task ends by a deadline
  /// of its own. Returns at once on a thread of its own, and where end(deadline) left one standing.
  void end();
  /// As end(), but returns false at the deadline, and on a thread of its own. The tasks that are
  /// left keep their threads until they have run, so they touch nothing that they do not hold.
  bool end(Deadline deadline);
  /// Returns whether the caller is one of its tasks.
  bool is_own_thread() const;

 private:
  struct ExecutorState;
  const std::shared_ptr<ExecutorState> state_;  // also its threads'
};

/// Starts a thread of that name for an Executor.
template <ThreadName kName>
inline constexpr Executor::StartThread kThreadNamed = &named_thread<kName, Executor::Task>;

}  // namespace linkspan::base
