#include "base/log_queue.hpp"

#include <pthread.h>

#include <csignal>
#include <deque>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/mutex.hpp"
#include "base/named_thread.hpp"

namespace linkspan::base {

struct LogQueue::State final : std::enable_shared_from_this<State> {
  struct Line {
    Level level;
    std::string text;
    std::size_t cost() const noexcept { return text.size() + kLineCost; }
  };

  explicit State(std::unique_ptr<Outlet> to) : outlet(std::move(to)) {}

  void start() LINKSPAN_REQUIRES(mutex) {
    // Signals of the program's are for its own threads.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread = named_thread<"ls-log">([self = shared_from_this()] { self->loop(); });
      running = true;
    } catch (const std::exception&) {
      // No memory for a stack, or too many threads: the next line tries again.
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void loop() LINKSPAN_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    for (;;) {
      while (!ending && lines.empty() && dropped == 0)
        changed.wait(mutex, Deadline::after(Clock::steady(), std::chrono::seconds(60)));
      if (abandoned || (lines.empty() && dropped == 0)) break;
      deliver_next();
    }
    running = false;
    changed.notify_all();
    if (self == nullptr) return;
    // The destructor has left this thread standing: it is joined by none, and ends here.
    thread.detach();
    self = nullptr;
  }

  void deliver_next() LINKSPAN_REQUIRES(mutex) {
    Line next{Level::warning, {}};
    const std::size_t lost = lines.empty() ? std::exchange(dropped, 0) : 0;
    if (lost == 0) {
      next = std::move(lines.front());
      lines.pop_front();
      bytes -= next.cost();
    }
    delivering = true;
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
    delivering = false;
    changed.notify_all();
  }

  bool is_own_thread() const LINKSPAN_REQUIRES(mutex) {
    return thread.get_id() == std::this_thread::get_id();
  }

  /// On the thread itself it cannot come.
  void wait_for_end(Deadline deadline) LINKSPAN_REQUIRES(mutex) {
    while (running && !is_own_thread() && !deadline.passed()) changed.wait(mutex, deadline);
  }

  bool is_empty() const LINKSPAN_REQUIRES(mutex) {
    return lines.empty() && dropped == 0 && !delivering;
  }

  const std::unique_ptr<Outlet> outlet;
  Mutex mutex;
  Condition changed;
  std::deque<Line> lines LINKSPAN_GUARDED_BY(mutex);
  std::size_t bytes LINKSPAN_GUARDED_BY(mutex) = 0, dropped LINKSPAN_GUARDED_BY(mutex) = 0;
  bool delivering LINKSPAN_GUARDED_BY(mutex) = false, running LINKSPAN_GUARDED_BY(mutex) = false;
  bool ending LINKSPAN_GUARDED_BY(mutex) = false;
  bool abandoned LINKSPAN_GUARDED_BY(mutex) = false;  // what waits is not delivered any more
  std::jthread thread LINKSPAN_GUARDED_BY(mutex);
  std::shared_ptr<State> self LINKSPAN_GUARDED_BY(mutex);  // where its thread was left standing
};

LogQueue::LogQueue(std::unique_ptr<Outlet> outlet)
    : state_(std::make_shared<State>(std::move(outlet))) {}

LogQueue::~LogQueue() {
  State& state = *state_;
  {
    const MutexLock lock(state.mutex);
    state.ending = true;
    state.changed.notify_all();
    state.wait_for_end(Deadline::after(Clock::steady(), kPatience));
    state.abandoned = true;
  }
  state.outlet->stop();
  std::jthread thread;
  const MutexLock lock(state.mutex);
  state.wait_for_end(Deadline::after(Clock::steady(), kPatience));
  if (state.running)
    state.self = state_;
  else
    thread = std::move(state.thread);  // joined once the lock is free
}

void LogQueue::push(Level level, std::string_view line) noexcept {
  const MutexLock lock(state_->mutex);
  try {
    State::Line next{level, std::string(line)};
    if (state_->dropped == 0 && state_->bytes + next.cost() <= kMaxBytes) {
      const std::size_t cost = next.cost();
      state_->lines.push_back(std::move(next));
      state_->bytes += cost;
    } else {
      ++state_->dropped;
    }
  } catch (const std::exception&) {
    ++state_->dropped;  // no memory for it
  }
  if (!state_->running) state_->start();
  state_->changed.notify_all();
}

bool LogQueue::flush(Deadline deadline) {
  const MutexLock lock(state_->mutex);
  if (state_->is_own_thread()) return false;
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
