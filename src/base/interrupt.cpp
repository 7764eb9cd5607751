#include "base/interrupt.hpp"

#include <utility>

namespace linkspan {
namespace {

thread_local InterruptCheck* check_of_thread = nullptr;

}  // namespace

InterruptCheck::InterruptCheck(std::function<bool()> interrupted)
    : function_(std::move(interrupted)), outer_(std::exchange(check_of_thread, this)) {}

InterruptCheck::~InterruptCheck() { check_of_thread = outer_; }

bool InterruptCheck::exists() noexcept { return check_of_thread != nullptr; }

bool InterruptCheck::has_ended() noexcept {
  return check_of_thread != nullptr && check_of_thread->interrupted_;
}

bool InterruptCheck::poll() {
  InterruptCheck* const check = check_of_thread;
  if (check == nullptr) return false;
  if (!check->interrupted_) check->interrupted_ = check->function_();
  return check->interrupted_;
}

namespace base {

bool wait_or_interrupted(Condition& condition, Mutex& mutex, Deadline deadline) {
  if (!InterruptCheck::exists()) {
    condition.wait(mutex, deadline);
    return false;
  }
  if (InterruptCheck::has_ended()) return true;
  condition.wait(mutex, Deadline::in(until_poll(deadline.left())));
  mutex.unlock();
  const bool ends = InterruptCheck::poll();
  mutex.lock();
  return ends;
}

}  // namespace base
}  // namespace linkspan
