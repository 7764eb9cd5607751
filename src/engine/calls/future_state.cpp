#include "engine/calls/future_state.hpp"

#include <utility>

namespace linkspan::engine {

bool FutureState::finish(const Status& end, std::shared_ptr<const void> value) noexcept {
  std::shared_ptr<CompletionQueueState> told;  // perhaps the last handle, so it ends off the lock
  const base::MutexLock lock(mutex_);
  if (done()) return false;
  end_ = end;
  value_ = std::move(value);
  done_.store(true, std::memory_order_release);
  changed_.notify_all();
  told = std::exchange(completion_.queue, nullptr);
  if (told != nullptr) told->push(completion_.cookie);
  return true;
}

/// Returns invalid_argument in a forked child.
Status FutureState::usable() const {
  if (!fork_.forked()) return {};
  return {Code::invalid_argument, Scope::process,
          "this process was forked from the one that made the call: make it here"};
}

void FutureState::cancel() {
  if (!done() && usable().ok()) finish({Code::canceled, Scope::request, "the call was canceled"});
}

Status FutureState::wait(base::Deadline deadline) {
  if (done()) return end_;
  if (Status status = usable(); !status.ok()) return status;
  const base::MutexLock lock(mutex_);
  while (!done()) {
    if (deadline.passed())
      return {Code::pending, Scope::request, "the call goes on: the wait's time-out passed"};
    changed_.wait(mutex_, deadline);
  }
  return end_;
}

Status FutureState::attach(std::shared_ptr<CompletionQueueState> queue, std::uint64_t cookie) {
  if (Status status = usable(); !status.ok()) return status;
  if (completion_.added.exchange(true))
    return {Code::invalid_argument, Scope::request,
            "the future was added to a completion queue before"};
  queue->reserve();
  const base::MutexLock lock(mutex_);
  if (done()) {
    queue->push(cookie);
  } else {
    completion_.cookie = cookie;
    completion_.queue = std::move(queue);
  }
  return {};
}

}  // namespace linkspan::engine
