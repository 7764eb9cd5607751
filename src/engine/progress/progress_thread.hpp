// engine/progress/progress_thread.hpp - the Engine's thread that makes progress while no user's
// thread does.
//
// A completion is a flag in memory and wakes no thread, so this thread polls. It polls at once,
// then yields, then sleeps until the time that the Endpoints predict. Some time after nothing is
// outstanding it waits on its eventfd for long.
// On the path of a byte: after the copy, where it collects completions.
// Threads: wake() and expect() any thread. The thread blocks in ppoll() on its
// eventfd, for at most kLongWait.
// Invariants: a notification between a poll and a wait ends the wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "base/wake_event.hpp"
#include "transport/transport.hpp"

namespace linkspan::engine {

class ProgressThread {
 public:
  static Result<std::unique_ptr<ProgressThread>> create();
  ~ProgressThread() { end(); }
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Starts the thread, once. `poll` makes progress and returns when to call it again; what it uses
  /// exists until end().
  Status start(std::function<transport::PollHint()> poll);
  void end() noexcept;  ///< Joins the thread.

  /// Makes the thread poll. Costs a system call only if it sleeps.
  void wake() noexcept;
  /// Called when work was submitted whose submitter normally polls itself. Unlike wake(), does not
  /// interrupt a short wait (0.2 ms at most).
  void expect() noexcept;

 private:
  explicit ProgressThread(base::WakeEvent event) : event_(std::move(event)) {}
  void run(const std::stop_token& stop);
  enum class IdleState : std::uint8_t { awake, short_wait, long_wait };
  void notify(IdleState from) noexcept;
  void wait_up_to(Duration at_most, IdleState how) noexcept;

  const base::WakeEvent event_;
  std::function<transport::PollHint()> poll_;  // set before the thread starts
  std::atomic<IdleState> idle_{IdleState::awake};
  std::atomic<bool> notified_{false};
  std::jthread thread_;
};

}  // namespace linkspan::engine
