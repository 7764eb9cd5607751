#include "base/fd_closer.hpp"

#include <atomic>
#include <map>
#include <new>
#include <string>
#include <utility>

#include "base/executor.hpp"
#include "base/mutex.hpp"
#include "base/process.hpp"

namespace linkspan::base {

struct FdCloser::FdCloserState {
  Executor executor{kThreadNamed<"ls-closer">, kThreads};
  std::atomic<std::size_t> waiting{0};
  Mutex mutex;
  std::map<pid_t, std::weak_ptr<Sink>> sinks LINKSPAN_GUARDED_BY(mutex);
};

/// Closes the descriptors of one process one at a time, so that one process blocks at most one
/// thread.
struct FdCloser::Sink final : FdSink, Executor::Strand, std::enable_shared_from_this<Sink> {
  explicit Sink(std::shared_ptr<FdCloserState> of) : state(std::move(of)) {}
  void close(int raw) noexcept override;
  bool full() const noexcept override {
    const std::size_t now = waiting.load();
    if (now >= kMaxOfOne) return true;
    const Time since = standing_since.load();
    return now >= kMaxOfStanding && since != Time() && Clock::steady().now() - since >= kPatience;
  }

  const std::shared_ptr<FdCloserState> state;
  std::atomic<std::size_t> waiting{0};
  std::atomic<Time> standing_since{};  // zero while no thread closes one
};

void FdCloser::Sink::close(int raw) noexcept {
  ++waiting;
  ++state->waiting;
  const auto close_now = [this, raw] {
    standing_since = Clock::steady().now();
    ::close(raw);
    standing_since = Time();
    --waiting;
    --state->waiting;
  };
  try {
    Executor::Task task = [self = shared_from_this(), close_now] { close_now(); };
    if (state->executor.try_run(task, shared_from_this())) return;
  } catch (const std::bad_alloc&) {
    // No memory to queue it: this thread closes it.
  }
  close_now();
}

FdCloser::FdCloser() : state_(std::make_shared<FdCloserState>()) {}

FdCloser::~FdCloser() { (void)end(Deadline::in(kPatience)); }

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
  if (state_->executor.end(deadline)) return {};
  return {Code::timed_out, Scope::process,
          std::to_string(state_->waiting) +
              " file descriptors of other processes are not closed yet: close(2) of one "
              "stands still"};
}

}  // namespace linkspan::base
