#include "cuda/deferred_destroyer.hpp"

#include <algorithm>
#include <exception>
#include <new>

#include "base/named_thread.hpp"

namespace linkspan::cuda {
namespace {

constexpr Duration kLong = std::chrono::seconds(60);
/// Maximum pause after a closing, which is as long as the closing took: threads that wait for the
/// driver get their turn.
constexpr Duration kPause = std::chrono::milliseconds(100);
/// Limit of a normal closing. A longer one waits for a blocked stream, as do submissions.
constexpr Duration kToEnd = std::chrono::seconds(1);

/// Runs the closing. What it owns is released even if it runs out of memory.
void call(const std::function<void()>& closing) noexcept {
  try {
    closing();
  } catch (const std::exception&) {
  }
}

}  // namespace

DeferredDestroyer::~DeferredDestroyer() {
  std::jthread thread;
  {
    const base::MutexLock lock(mutex_);
    ending_ = true;
    thread = std::move(thread_);
  }
  changed_.notify_all();
  if (thread.joinable()) thread.join();
  const base::MutexLock lock(mutex_);
  while (!pending_.empty()) run_first();  // the thread could not be started
}

DeferredDestroyer::DeferralGuard DeferredDestroyer::defer() {
  const base::MutexLock lock(mutex_);
  const std::uint64_t number = ++last_;
  guards_.insert(guards_.end(), number);
  for (const base::Deadline soon = base::Deadline::in(kToEnd); is_closing_ && !soon.passed();)
    changed_.wait(mutex_, soon);
  return {*this, number};
}

void DeferredDestroyer::release_guard(std::uint64_t number) {
  if (fork_.forked()) return;
  const base::MutexLock lock(mutex_);
  guards_.erase(number);
  if (pending_.empty()) return;
  start();
  changed_.notify_all();
}

bool DeferredDestroyer::unguarded() const {
  const base::MutexLock lock(mutex_);
  return guards_.empty();
}

void DeferredDestroyer::run(std::function<void()> closing) noexcept {
  if (fork_.forked()) return;
  try {
    const base::MutexLock lock(mutex_);
    pending_.push_back({nullptr, last_ + 1, base::Clock::steady().now()});
    pending_.back().run = std::move(closing);  // moved last: push_back may throw
    start();
    changed_.notify_all();
  } catch (const std::bad_alloc&) {
    call(closing);
  }
}

/// Starts the thread. If it cannot be started, the queue is kept; the next run() retries, and
/// drain() runs the queue itself.
void DeferredDestroyer::start() {
  if (thread_.joinable() || ending_) return;
  try {
    thread_ = base::named_thread<"ls-destroyer">([this] { loop(); });
  } catch (const std::exception&) {
  }
}

void DeferredDestroyer::drain() {
  const base::MutexLock lock(mutex_);
  ++draining_;
  changed_.notify_all();
  while (!pending_.empty()) {
    start();
    thread_.joinable() || is_closing_ ? changed_.wait(mutex_, base::Deadline::in(kLong))
                                      : run_first();
  }
  --draining_;
}

Duration DeferredDestroyer::to_wait() const {
  if (pending_.empty() || is_closing_) return kLong;  // drain() may run the first one
  if (draining_ != 0 || ending_) return Duration::zero();
  const DeferredClose& first = pending_.front();
  if (!guards_.empty() && *guards_.begin() < first.after) return kLong;
  const base::Time from = guards_.empty() ? next_ : std::max(next_, first.since + patience_);
  return std::max(from - base::Clock::steady().now(), Duration::zero());
}

void DeferredDestroyer::loop() {
  mutex_.lock();
  while (!ending_ || !pending_.empty()) {
    if (const Duration wait = to_wait(); wait > Duration::zero()) {
      changed_.wait(mutex_, base::Deadline::in(wait));
      continue;
    }
    run_first();
  }
  mutex_.unlock();
}

void DeferredDestroyer::run_first() {
  std::function<void()> closing = std::move(pending_.front().run);
  is_closing_ = true;
  mutex_.unlock();
  const base::Time begin = base::Clock::steady().now();
  call(closing);
  closing = nullptr;  // its captures may do the closing
  const base::Time end = base::Clock::steady().now();
  mutex_.lock();
  next_ = end + std::min(end - begin, kPause);
  pending_.pop_front();
  is_closing_ = false;
  changed_.notify_all();
}

}  // namespace linkspan::cuda
