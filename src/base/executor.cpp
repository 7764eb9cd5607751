#include "base/executor.hpp"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <exception>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.hpp"

namespace linkspan::base {
namespace {

constexpr Duration kSlice = std::chrono::seconds(60);

/// Blocks every signal of the calling thread, and so of the threads that it starts meanwhile.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

struct Executor::ExecutorState final : std::enable_shared_from_this<ExecutorState> {
  struct Queued {
    Task run;
    std::shared_ptr<Strand> strand;
  };

  ExecutorState(StartThread starts, std::size_t max) : start_thread(starts), max_threads(max) {}
  /// Joins the threads. The last of those that end() left destroys this, and cannot join itself.
  ~ExecutorState() {
    for (std::jthread& each : threads)
      if (each.get_id() == std::this_thread::get_id()) each.detach();
  }
  ExecutorState(const ExecutorState&) = delete;
  ExecutorState& operator=(const ExecutorState&) = delete;

  bool push(Task& task, std::shared_ptr<Strand> strand) LINKSPAN_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    if (!ending && idle <= queue.size() && threads.size() < max_threads) start();
    if (running == 0) return false;
    queue.emplace_back().strand = std::move(strand);
    queue.back().run = std::move(task);
    changed.notify_all();
    return true;
  }

  void start() LINKSPAN_REQUIRES(mutex) {
    const SignalsBlocked blocked;
    try {
      threads.reserve(max_threads);
      threads.push_back(start_thread([self = shared_from_this()] { self->loop(); }));
      ++running;
    } catch (const std::exception&) {
      // No memory for a stack, or too many threads: another thread or the caller runs the task.
    }
  }

  void loop() LINKSPAN_EXCLUDES(mutex) {
    while (auto next = take_next()) {
      try {
        next->run();
      } catch (const std::exception&) {
        // No memory. The task is dropped; the next ones run.
      }
      next->run = nullptr;
      if (next->strand == nullptr) continue;
      const MutexLock lock(mutex);
      next->strand->busy_ = false;
      changed.notify_all();  // another task of that Strand may run
    }
  }

  /// Waits for a task that may run and returns it. Returns nullopt when the thread is to end.
  std::optional<Queued> take_next() LINKSPAN_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    while (!ending || !queue.empty()) {
      const auto next = std::ranges::find_if(
          queue, [](const Queued& each) { return each.strand == nullptr || !each.strand->busy_; });
      if (next != queue.end()) {
        if (next->strand != nullptr) next->strand->busy_ = true;
        std::optional<Queued> taken(std::move(*next));
        queue.erase(next);
        return taken;
      }
      ++idle;
      changed.wait(mutex, Deadline::in(kSlice));
      --idle;
    }
    --running;
    changed.notify_all();
    return std::nullopt;
  }

  /// Runs what is queued and joins the threads. Leaves the threads running at the deadline, if
  /// there is one, and when called on one of them.
  bool end(const std::optional<Deadline>& deadline) LINKSPAN_EXCLUDES(mutex) {
    std::vector<std::jthread> ended;  // joined once the lock is free
    const MutexLock lock(mutex);
    ending = true;
    changed.notify_all();
    while (running != 0) {
      if (is_own_thread() || (deadline ? deadline->passed() : left)) {
        left = true;
        return false;
      }
      changed.wait(mutex, deadline.value_or(Deadline::in(kSlice)));
    }
    ended.swap(threads);
    return true;
  }

  bool is_own_thread() const LINKSPAN_REQUIRES(mutex) {
    return std::ranges::any_of(threads, [](const std::jthread& each) {
      return each.get_id() == std::this_thread::get_id();
    });
  }

  const StartThread start_thread;
  const std::size_t max_threads;
  Mutex mutex;
  Condition changed;
  std::deque<Queued> queue LINKSPAN_GUARDED_BY(mutex);
  std::size_t running LINKSPAN_GUARDED_BY(mutex) = 0, idle LINKSPAN_GUARDED_BY(mutex) = 0;
  bool ending LINKSPAN_GUARDED_BY(mutex) = false;
  bool left LINKSPAN_GUARDED_BY(mutex) = false;  // the threads run on, and end() does not join them
  std::vector<std::jthread> threads LINKSPAN_GUARDED_BY(mutex);
};

Executor::Executor(StartThread start, std::size_t max_threads)
    : state_(std::make_shared<ExecutorState>(start, max_threads)) {}

Executor::~Executor() { end(); }

void Executor::run(Task task) {
  bool queued = false;
  try {
    queued = try_run(task);
  } catch (const std::bad_alloc&) {  // as where no thread can be had
  }
  if (!queued) task();
}

bool Executor::try_run(Task& task, std::shared_ptr<Strand> strand) {
  return state_->push(task, std::move(strand));
}

void Executor::end() { (void)state_->end(std::nullopt); }

bool Executor::end(Deadline deadline) { return state_->end(deadline); }

bool Executor::is_own_thread() const {
  const MutexLock lock(state_->mutex);
  return state_->is_own_thread();
}

}  // namespace linkspan::base
