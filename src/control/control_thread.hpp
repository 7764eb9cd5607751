// control/control_thread.hpp - the thread `ls-control` and its event loop: when it polls instead of
// sleeping, how it goes on without memory, and how it ends. Off the path of a byte.
//
// Threads: any thread, but for start(), which comes first, and join(), which is externally
// synchronised.
// Invariants: an exception ends the operation that threw it, never the thread.
#pragma once

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <atomic>
#include <functional>
#include <thread>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"

namespace linkspan::control {

class ControlThread {
 public:
  /// `log` outlives the thread, which writes the suppressed lines when they are due.
  explicit ControlThread(const base::Log& log) : log_(log) {}

  /// Starts it. `resume` is called after an operation that had no memory. `recover` is called
  /// before each operation; while it returns false, the thread does not poll.
  void start(std::function<void()> resume, std::function<bool()> recover);
  /// Makes the thread poll for `time`.
  void stay_awake(Duration time);
  void stop() { io_.stop(); }  ///< Ends the thread after the operation that runs now.
  /// Returns false at the deadline, or where the caller was interrupted.
  bool await_end(base::Deadline deadline, bool interruptible) LINKSPAN_EXCLUDES(mutex_);
  /// Returns false if it was joined before, or never started.
  bool join();

  asio::io_context& io() noexcept { return io_; }

 private:
  void run(const std::function<void()>& resume, const std::function<bool()>& recover)
      LINKSPAN_EXCLUDES(mutex_);
  void run_one();

  const base::Log& log_;
  asio::io_context io_{1};
  const asio::executor_work_guard<asio::io_context::executor_type> keeps_running_{
      io_.get_executor()};
  std::atomic<base::Time> awake_until_{};
  base::Mutex mutex_;
  base::Condition changed_;
  bool ended_ LINKSPAN_GUARDED_BY(mutex_) = false;  // run() is about to return
  std::jthread thread_;                             // last: it uses all of the above
};

}  // namespace linkspan::control
