// linkspan/interrupt_check.hpp - ends a wait early: a function of the caller's, asked while a call
// of linkspan waits.
//
//   const InterruptCheck check([] { return ctrl_c_was_pressed.load(); });
//   auto peer = engine.connect(address, 60s);  // canceled, at most 0.1 s after Ctrl-C
//
// Polled by Engine::connect, accept, notifications, deregister, invalidate and close, by
// Peer::lookup, lookup_set and await_version, and by the waits of a Window. An interrupted call
// answers `canceled`, notifications() returns what it has. What the call had begun is left as after
// a time-out: the call may be repeated. Transfer::wait does not poll: wait in slices.
// Threads: of the thread that made it, whose calls alone poll it.
// Invariants: the function is called without a lock of linkspan's, and not again once it answered
// true.
#pragma once

#include <functional>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan {

class LINKSPAN_API InterruptCheck {
 public:
  /// `interrupted` returns true to end the wait. It must not throw. Until this object ends it
  /// replaces the thread's InterruptCheck before it.
  explicit InterruptCheck(std::function<bool()> interrupted);
  ~InterruptCheck();
  InterruptCheck(const InterruptCheck&) = delete;
  InterruptCheck& operator=(const InterruptCheck&) = delete;

  /// Returns whether the function has answered true.
  bool interrupted() const noexcept { return interrupted_; }

  /// Asks the thread's InterruptCheck, if it has one. For linkspan's own waits.
  static bool poll();
  /// Returns whether this thread has an InterruptCheck.
  static bool exists() noexcept;
  /// Returns whether this thread's InterruptCheck has answered true, without asking it.
  static bool has_ended() noexcept;

 private:
  const std::function<bool()> function_;
  InterruptCheck* const outer_;
  bool interrupted_ = false;
};

}  // namespace linkspan
