// engine/progress_thread.hpp - the Engine's thread that makes progress while no thread of the user
// does.
//
// A completion is a word in memory, which wakes nobody: somebody has to look. The ProgressThread
// looks at once, then yields, then sleeps until what the Endpoints predict; a while after nothing
// is outstanding it is parked. Users that wait look themselves, and it keeps out of their way.
// Threads: wake() and the user's coming and going, any thread; it blocks in ppoll on its own
// eventfd only, for at most kLongWait.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "base/fd.hpp"
#include "transport/transport.hpp"

namespace linkspan::engine {

class ProgressThread {
 public:
  /// `look` makes progress and says when to come again. It outlives the ProgressThread.
  static Result<std::unique_ptr<ProgressThread>> start(std::function<transport::PollHint()> poll);
  ~ProgressThread();  ///< Joins the thread.
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Something has changed. A system call only if the thread sleeps.
  void wake() noexcept;
  /// Something is outstanding that its submitter will look after, as a rule: a thread that only
  /// dozes is let sleep on, at most 0.2 ms.
  void expect() noexcept;
  void user_waits(bool begins) noexcept { users_ += begins ? 1 : -1; }

 private:
  ProgressThread(base::Fd eventfd, std::function<transport::PollHint()> poll);
  void run(const std::stop_token& stop);
  enum class IdleState : std::uint8_t { awake, short_wait, long_wait };
  void notify(IdleState from) noexcept;
  void wait_up_to(Duration at_most, IdleState how) noexcept;

  const base::Fd eventfd_;
  const std::function<transport::PollHint()> poll_;
  std::atomic<IdleState> idle_{IdleState::awake};
  std::atomic<bool> notified_{false};
  std::atomic<int> users_{0};
  std::jthread thread_;
};

}  // namespace linkspan::engine
