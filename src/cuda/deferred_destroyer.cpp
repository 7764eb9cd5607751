#include "cuda/deferred_destroyer.hpp"

#include <algorithm>
#include <exception>
#include <new>

#include "base/named_thread.hpp"

namespace linkspan::cuda {
namespace {

constexpr Duration kLong = std::chrono::seconds(60);
/// After a closing, as long as it took or this: threads that wait for the driver come in between.
constexpr Duration kPause = std::chrono::milliseconds(100);
/// A closing that takes longer waits for a stream that stands still: so does whoever submits.
constexpr Duration kToEnd = std::chrono::seconds(1);

base::Deadline after(Duration wait) { return base::Deadline::after(base::Clock::steady(), wait); }

/// Where memory ends in it, what it keeps is let go of all the same.
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
  while (!pending_.empty()) run_first();  // there was no thread to be had
}

DeferredDestroyer::DeferralGuard DeferredDestroyer::defer() {
  const base::MutexLock lock(mutex_);
  const std::uint64_t number = ++last_;
  guards_.insert(guards_.end(), number);
  for (const base::Deadline soon = after(kToEnd); is_closing_ && !soon.passed();)
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
    pending_.back().run = std::move(closing);  // which a push that throws would have taken
    start();
    changed_.notify_all();
  } catch (const std::bad_alloc&) {
    call(closing);
  }
}

/// Where no thread can be had, for want of memory or by a limit, what waits goes on waiting: the
/// next that comes tries again, and who has to see it done does it.
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
    thread_.joinable() || is_closing_ ? changed_.wait(mutex_, after(kLong)) : run_first();
  }
  --draining_;
}

Duration DeferredDestroyer::to_wait() const {
  if (pending_.empty()) return kLong;
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
      changed_.wait(mutex_, after(wait));
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
  closing = nullptr;  // what it holds may be what closes
  const base::Time end = base::Clock::steady().now();
  mutex_.lock();
  next_ = end + std::min(end - begin, kPause);
  pending_.pop_front();
  is_closing_ = false;
  changed_.notify_all();
}

}  // namespace linkspan::cuda
