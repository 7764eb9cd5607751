#include "base/log_queue.hpp"

#include <deque>
#include <exception>
#include <string>
#include <utility>

#include "base/executor.hpp"
#include "base/mutex.hpp"

namespace linkspan::base {

struct LogQueue::LogQueueState final : std::enable_shared_from_this<LogQueueState> {
  struct Line {
    Level level;
    std::string text;
    std::size_t cost() const noexcept { return text.size() + kLineCost; }
  };

  explicit LogQueueState(std::unique_ptr<Outlet> to) : outlet(std::move(to)) {}

  /// Starts the delivery. If no thread can be started, the next line tries again.
  void schedule() LINKSPAN_REQUIRES(mutex) {
    if (delivering) return;
    Executor::Task task = [self = shared_from_this()] { self->deliver_all(); };
    delivering = executor.try_run(task);
  }

  void deliver_all() LINKSPAN_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    while (!abandoned && (!lines.empty() || dropped != 0)) deliver_next();
    delivering = false;
    changed.notify_all();
  }

  void deliver_next() LINKSPAN_REQUIRES(mutex) {
    Line next{Level::warning, {}};
    const std::size_t lost = lines.empty() ? std::exchange(dropped, 0) : 0;
    if (lost == 0) {
      next = std::move(lines.front());
      lines.pop_front();
      bytes -= next.cost();
    }
    mutex.unlock();
    try {
      if (lost != 0)
        next.text = std::to_string(lost) +
                    " lines of the log are lost: they came faster than they "
                    "were read";
      outlet->deliver(next.level, next.text);
    } catch (...) {  // the user's callback may throw anything
    }
    mutex.lock();
  }

  bool is_empty() const LINKSPAN_REQUIRES(mutex) {
    return lines.empty() && dropped == 0 && !delivering;
  }

  const std::unique_ptr<Outlet> outlet;
  Mutex mutex;
  Condition changed;
  std::deque<Line> lines LINKSPAN_GUARDED_BY(mutex);
  std::size_t bytes LINKSPAN_GUARDED_BY(mutex) = 0, dropped LINKSPAN_GUARDED_BY(mutex) = 0;
  bool delivering LINKSPAN_GUARDED_BY(mutex) = false;  // deliver_all() is queued or runs
  bool abandoned LINKSPAN_GUARDED_BY(mutex) = false;   // queued lines are not delivered any more
  Executor executor{kThreadNamed<"ls-log">};
};

LogQueue::LogQueue(std::unique_ptr<Outlet> outlet)
    : state_(std::make_shared<LogQueueState>(std::move(outlet))) {}

LogQueue::~LogQueue() {
  (void)flush(Deadline::in(kPatience));
  {
    const MutexLock lock(state_->mutex);
    state_->abandoned = true;
  }
  state_->outlet->stop();
  (void)state_->executor.end(Deadline::in(kPatience));
}

void LogQueue::push(Level level, std::string_view line) noexcept {
  const MutexLock lock(state_->mutex);
  try {
    LogQueueState::Line next{level, std::string(line)};
    if (state_->dropped == 0 && state_->bytes + next.cost() <= kMaxBytes) {
      const std::size_t cost = next.cost();
      state_->lines.push_back(std::move(next));
      state_->bytes += cost;
    } else {
      ++state_->dropped;
    }
  } catch (const std::exception&) {
    ++state_->dropped;  // no memory
  }
  try {
    state_->schedule();
  } catch (const std::exception&) {
    // No memory to queue a task: the next line tries again.
  }
}

bool LogQueue::flush(Deadline deadline) {
  const MutexLock lock(state_->mutex);
  if (state_->executor.is_own_thread()) return false;
  while (!state_->is_empty()) {
    if (deadline.passed()) return false;
    state_->changed.wait(state_->mutex, deadline);
  }
  return true;
}

bool LogQueue::empty() const noexcept {
  const MutexLock lock(state_->mutex);
  return state_->is_empty();
}

}  // namespace linkspan::base
