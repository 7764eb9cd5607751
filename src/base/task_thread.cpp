#include "base/task_thread.hpp"

#include <utility>

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
      tasks_.push_back(std::exchange(task, nullptr));
      if (!thread_.joinable() && !ending_) thread_ = std::jthread([this] { loop(); });
    }
  }
  changed_.notify_all();
  if (task) task();
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
    task();
  }
}

}  // namespace linkspan::base
