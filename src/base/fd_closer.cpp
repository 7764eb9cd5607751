#include "base/fd_closer.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/named_thread.hpp"
#include "base/process.hpp"

namespace linkspan::base {

struct FdCloser::Sink final : FdSink, std::enable_shared_from_this<Sink> {
  explicit Sink(std::shared_ptr<State> of) : state(std::move(of)) {}
  void close(int raw) noexcept override;
  bool full() const noexcept override {
    const std::size_t now = waiting.load();
    if (now >= kMaxOfOne) return true;
    const Time since = standing_since.load();
    return now >= kMaxOfStanding && since != Time() && Clock::steady().now() - since >= kPatience;
  }

  const std::shared_ptr<State> state;
  std::atomic<std::size_t> waiting{0};
  std::atomic<Time> standing_since{};  // none: no thread closes one of it
};

struct FdCloser::State final : std::enable_shared_from_this<State> {
  struct Waiting {
    int raw;
    std::shared_ptr<Sink> of;  // also the Fds' of that process
  };

  /// False: no thread closes it.
  bool push(const std::shared_ptr<Sink>& of, int raw) LINKSPAN_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    if (!ending && idle <= queue.size() && threads.size() < kThreads) start();
    if (running == 0) return false;
    queue.push_back({raw, of});
    ++of->waiting;
    ++waiting;
    changed.notify_all();
    return true;
  }

  void start() LINKSPAN_REQUIRES(mutex) {
    threads.reserve(kThreads);
    try {
      threads.push_back(named_thread<"ls-closer">([self = shared_from_this()] { self->loop(); }));
      ++running;
    } catch (const std::exception&) {
      // No memory for a stack, or too many threads: another one closes it, or the caller does.
    }
  }

  void loop() LINKSPAN_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    while (!ending || !queue.empty()) {
      if (close_next()) continue;
      ++idle;
      changed.wait(mutex, Deadline::after(Clock::steady(), std::chrono::seconds(60)));
      --idle;
    }
    --running;
    changed.notify_all();
  }

  /// The oldest one of a process that keeps no thread. False: there is none.
  bool close_next() LINKSPAN_REQUIRES(mutex) {
    const auto next = std::ranges::find_if(
        queue, [](const Waiting& each) { return each.of->standing_since.load() == Time(); });
    if (next == queue.end()) return false;
    const Waiting closing = std::move(*next);
    queue.erase(next);
    closing.of->standing_since = Clock::steady().now();
    mutex.unlock();
    ::close(closing.raw);
    mutex.lock();
    closing.of->standing_since = Time();
    --closing.of->waiting;
    --waiting;
    changed.notify_all();  // another one of that process may go
    return true;
  }

  Mutex mutex;
  Condition changed;
  std::deque<Waiting> queue LINKSPAN_GUARDED_BY(mutex);
  std::vector<std::jthread> threads LINKSPAN_GUARDED_BY(mutex);
  std::size_t running LINKSPAN_GUARDED_BY(mutex) = 0, idle LINKSPAN_GUARDED_BY(mutex) = 0;
  bool ending LINKSPAN_GUARDED_BY(mutex) = false;
  std::atomic<std::size_t> waiting{0};
  std::map<pid_t, std::weak_ptr<Sink>> sinks LINKSPAN_GUARDED_BY(mutex);
  std::shared_ptr<State> self LINKSPAN_GUARDED_BY(mutex);  // where a thread was left standing
};

void FdCloser::Sink::close(int raw) noexcept {
  try {
    if (state->push(shared_from_this(), raw)) return;
  } catch (const std::bad_alloc&) {
    // No room to put it aside.
  }
  ::close(raw);
}

FdCloser::FdCloser() : state_(std::make_shared<State>()) {}

FdCloser::~FdCloser() { (void)end(Deadline::after(Clock::steady(), kPatience)); }

std::shared_ptr<FdSink> FdCloser::sink() const { return std::make_shared<Sink>(state_); }

std::shared_ptr<FdSink> FdCloser::sink_of(int socket) const {
  const auto peer = peer_credentials(socket);
  if (!peer.ok() || peer->pid == 0) return sink();
  const MutexLock lock(state_->mutex);
  std::erase_if(state_->sinks, [](const auto& each) { return each.second.expired(); });
  std::weak_ptr<Sink>& known = state_->sinks[peer->pid];
  auto shared = known.lock();
  if (shared == nullptr) known = shared = std::make_shared<Sink>(state_);
  return shared;
}

bool FdCloser::full() const noexcept { return state_->waiting.load() >= kMaxWaiting; }

Status FdCloser::end(Deadline deadline) {
  std::vector<std::jthread> threads;
  {
    const MutexLock lock(state_->mutex);
    state_->ending = true;
    state_->changed.notify_all();
    while (state_->running != 0) {
      if (deadline.passed()) {
        state_->self = state_;
        return {Code::timed_out, Scope::process,
                std::to_string(state_->waiting) +
                    " file descriptors of other processes are not closed yet: close(2) of one "
                    "stands still"};
      }
      state_->changed.wait(state_->mutex, deadline);
    }
    threads.swap(state_->threads);
    state_->self.reset();
  }
  return {};
}

}  // namespace linkspan::base
