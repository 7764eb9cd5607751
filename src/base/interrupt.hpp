// base/interrupt.hpp - waits that poll the thread's InterruptCheck (linkspan/interrupt_check.hpp).
//
// A wait of a public call goes through one of these, so that a binding can end it on a signal.
// Threads: any thread.
// Invariants: the check is called without the mutex of the wait, at least every kPollInterrupts.
#pragma once

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "linkspan/interrupt_check.hpp"

namespace linkspan::base {

inline constexpr Duration kPollInterrupts = std::chrono::milliseconds(50);

/// Returns what an interrupted call answers.
inline Status interrupted() {
  return {Code::canceled, Scope::request,
          "interrupted: the caller's InterruptCheck ended the wait; call again to go on"};
}

/// Returns how long a wait may sleep before the check is due: `left` without a check.
inline Duration until_poll(Duration left) noexcept {
  return InterruptCheck::exists() ? std::min(left, kPollInterrupts) : left;
}

/// Waits as Condition::wait() does, which may wake early. Returns true if the wait is to end; the
/// mutex was unlocked meanwhile, so the caller looks at what it guards again.
bool wait_or_interrupted(Condition& condition, Mutex& mutex, Deadline deadline)
    LINKSPAN_REQUIRES(mutex);

/// For loops that sleep less than kPollInterrupts: asks the check each time that it is due.
class InterruptPoll {
 public:
  /// Returns whether the loop is to end. No lock is held.
  bool due_and_interrupted() {
    if (!InterruptCheck::exists() || !next_.passed()) return false;
    next_ = Deadline::in(kPollInterrupts);
    return InterruptCheck::poll();
  }

 private:
  Deadline next_ = Deadline::in(kPollInterrupts);
};

}  // namespace linkspan::base
