#include "base/task_thread.hpp"

#include <utility>

namespace linkspan::base {

TaskThread::~TaskThread() {
  std::jthread thread;
  {
    const MutexLock lock(mutex_);
    ending_ = true;
    thread = std::move(thread_);
  }
  changed_.notify_all();
}  // the jthread joins here

void TaskThread::run(std::function<void()> task) {
  {
    const MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
    if (!thread_.joinable()) thread_ = std::jthread([this] { loop(); });
  }
  changed_.notify_all();
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
