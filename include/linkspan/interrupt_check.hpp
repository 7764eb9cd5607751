// linkspan/interrupt_check.hpp - ends a wait early: linkspan polls a function of the caller while
// one of its calls waits.
//
//   const InterruptCheck check([] { return ctrl_c_was_pressed.load(); });
//   auto peer = engine.connect(address, 60s);  // canceled, at most 0.1 s after Ctrl-C
//
// Polled by Engine::connect, accept, notifications, deregister, invalidate and close, by
// Peer::lookup, lookup_set and await_version, and by the waits of a Window. An interrupted call
// answers `canceled`; notifications() returns those that have arrived. The state is that after a
// time-out, so the call may be repeated. Transfer::wait does not poll: wait in slices.
// Threads: belongs to the thread that created it; only calls of that thread poll it.
// Invariants: linkspan calls the function without a lock, and not again once it returned true.
#pragma once

#include <functional>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan {

class LINKSPAN_API InterruptCheck {
 public:
  /// Installs `interrupted`, which returns true to end the wait and must not throw. Replaces the
  /// thread's current InterruptCheck until this object is destroyed.
  explicit InterruptCheck(std::function<bool()> interrupted);
  ~InterruptCheck();
  InterruptCheck(const InterruptCheck&) = delete;
  InterruptCheck& operator=(const InterruptCheck&) = delete;

  /// Returns whether the function has answered true.
  bool interrupted() const noexcept { return interrupted_; }

  /// Calls the function of the thread's InterruptCheck, if any; true ends the wait. For linkspan's
  /// own waits.
  static bool poll();
  /// Returns whether this thread has an InterruptCheck.
  static bool exists() noexcept;
  /// Returns whether this thread's InterruptCheck has answered true, without calling it.
  static bool has_ended() noexcept;

 private:
  const std::function<bool()> function_;
  InterruptCheck* const outer_;
  bool interrupted_ = false;
};

}  // namespace linkspan
