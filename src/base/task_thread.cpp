#include "base/task_thread.hpp"

#include <exception>
#include <system_error>
#include <utility>

#include "base/named_thread.hpp"

namespace linkspan::base {

void TaskThread::end() {
  std::jthread thread;
  {
    const MutexLock lock(mutex_);
    ending_ = true;
    thread = std::move(thread_);
  }
  changed_.notify_all();
  if (thread.joinable()) thread.join();
  const MutexLock lock(mutex_);
  ended_ = true;
}

void TaskThread::run(std::function<void()> task) {
  {
    const MutexLock lock(mutex_);
    if (!ended_) {
      if (!thread_.joinable() && !ending_) start();
      if (thread_.joinable() || ending_) tasks_.push_back(std::exchange(task, nullptr));
    }
  }
  changed_.notify_all();
  if (task) task();
}

void TaskThread::start() {
  try {
    thread_ = base::named_thread<"ls-opener">([this] { loop(); });
  } catch (const std::exception&) {
    // No memory for a stack, or too many threads: its caller runs the task.
  }
}

void TaskThread::loop() {
  for (;;) {
    std::function<void()> task;
    {
      const MutexLock lock(mutex_);
      while (tasks_.empty()) {
        if (ending_) return;
        changed_.wait(mutex_, Deadline::after(Clock::steady(), std::chrono::seconds(60)));
      }
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    try {
      task();
    } catch (const std::exception&) {
      // No memory: what it was for is dropped, and the next ones run.
    }
  }
}

}  // namespace linkspan::base
