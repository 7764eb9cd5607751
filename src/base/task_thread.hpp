// base/task_thread.hpp - one thread that runs tasks in order: work of milliseconds that must not be
// done under a lock, such as opening a peer's memory.
//
// Threads: run() from any thread, also from a task. The thread starts with the first task; if it
// cannot be started, run() executes the task itself. end() and the destructor wait for the queued
// tasks, so each task must end by a deadline of its own. A task that throws ends; the others go on.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "base/mutex.hpp"

namespace linkspan::base {

class TaskThread {
 public:
  TaskThread() = default;
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;
  ~TaskThread() { end(); }

  void run(std::function<void()> task) LINKSPAN_EXCLUDES(mutex_);
  /// Waits until all tasks have run, also those that they added. Later tasks run in run().
  void end() LINKSPAN_EXCLUDES(mutex_);

 private:
  void start() LINKSPAN_REQUIRES(mutex_);
  void loop() LINKSPAN_EXCLUDES(mutex_);

  Mutex mutex_;
  Condition changed_;
  std::deque<std::function<void()>> tasks_ LINKSPAN_GUARDED_BY(mutex_);
  bool ending_ LINKSPAN_GUARDED_BY(mutex_) = false, ended_ LINKSPAN_GUARDED_BY(mutex_) = false;
  std::jthread thread_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::base
