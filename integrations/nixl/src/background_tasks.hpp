// nixl/background_tasks.hpp - the thread of a backend, on which what cannot be finished within a
// call of NIXL goes on: connects, lookups, notifications that wait for room, deregistrations.
//
// Off the path of a byte, but for transfers that were posted before their peer was connected.
// Threads: any thread; tasks run on its own.
// Invariants: a task never blocks. After the destructor none runs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/wake_event.hpp"
#include "linkspan/completion_queue.hpp"
#include "linkspan/future.hpp"
#include "linkspan/status.hpp"

namespace linkspan::nixl {

class BackgroundTasks {
 public:
  /// Goes on as far as it can without waiting. Returns when to call it again at the latest, or
  /// nullopt at its end.
  using Task = std::function<std::optional<base::Time>()>;

  static Result<std::unique_ptr<BackgroundTasks>> start();
  ~BackgroundTasks();
  BackgroundTasks(const BackgroundTasks&) = delete;
  BackgroundTasks& operator=(const BackgroundTasks&) = delete;

  /// Calls the task soon, and after each future that is done, until it ends.
  void add(Task task) LINKSPAN_EXCLUDES(mutex_);
  /// Wakes the tasks when the call is done.
  void watch(const AnyFuture& future);

 private:
  BackgroundTasks(CompletionQueue queue, base::WakeEvent wake);

  void run(const std::stop_token& stop) LINKSPAN_EXCLUDES(mutex_);
  std::optional<base::Time> run_tasks(std::vector<Task>& tasks) LINKSPAN_EXCLUDES(mutex_);

  CompletionQueue queue_;
  base::WakeEvent wake_;
  base::Mutex mutex_;
  std::vector<Task> added_ LINKSPAN_GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace linkspan::nixl
