// transport/tcp/data_connection_thread.hpp - the threads that move the bytes of connections, each
// of its own.
//
// A thread sleeps in epoll after a turn in which no data connection moved anything, until an event
// or wake(). Edges tell of what is new and never again of what was left, so the clock alone never
// decides that a thread sleeps (SleepDecision). It spins a little before, and as long as a GPU
// copies for one of its data connections.
// Threads: any thread may call; a SleepDecision is externally synchronised.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/mutex.hpp"
#include "linkspan/status.hpp"

namespace linkspan::transport::tcp {

class DataConnection;

/// Decides whether a thread may sleep before its next turn.
class SleepDecision {
 public:
  static constexpr Duration kSpin = std::chrono::microseconds(100);  ///< A sleep costs about that.

  explicit SleepDecision(base::Time now) : moved_at_(now) {}
  /// Records a turn of all data connections. `watches`: no event will come of what one waits for.
  /// `now`: a time after the turn, read only if something `moved`.
  void on_poll(bool moved, bool needs_polling, base::Time now) noexcept {
    continues_ = moved || needs_polling;
    if (moved) moved_at_ = now;
  }
  /// Returns true only if the last turn moved nothing and watches nothing. The thread may have lost
  /// its core since then, so `now` may lie any time later.
  bool may_sleep(base::Time now) const noexcept { return !continues_ && now - moved_at_ >= kSpin; }

 private:
  base::Time moved_at_;
  bool continues_ = true;  // of the last turn; true before the first
};

class DataConnectionThread {
 public:
  /// system: no thread or no file is to be had.
  static Result<std::unique_ptr<DataConnectionThread>> start();
  DataConnectionThread(const DataConnectionThread&) = delete;
  DataConnectionThread& operator=(const DataConnectionThread&) = delete;
  /// Its connections' wires have failed. Waits for their GPUs, 10 s at most.
  ~DataConnectionThread();

  /// Until it is over. system: epoll has no room for it.
  Status add(std::shared_ptr<DataConnection> connection) LINKSPAN_EXCLUDES(mutex_);
  void wake();
  std::size_t connections() const noexcept { return count_; }

 private:
  using DataConnections = std::vector<std::shared_ptr<DataConnection>>;  // also their wires'
  DataConnectionThread(base::Fd epoll, base::Fd wake_fd)
      : epoll_(std::move(epoll)), wake_fd_(std::move(wake_fd)) {}
  void run(const std::stop_token& stop) LINKSPAN_EXCLUDES(mutex_);
  bool wait(Duration most);
  /// Returns false where there is no memory for those that came.
  bool collect(DataConnections& connections) LINKSPAN_EXCLUDES(mutex_);

  const base::Fd epoll_, wake_fd_;
  std::atomic<bool> woken_{false}, sleeps_{false};
  std::atomic<std::size_t> count_{0};  // of its connections
  base::Mutex mutex_;
  DataConnections added_ LINKSPAN_GUARDED_BY(mutex_);
  std::jthread thread_;  // last
};

/// As many as there may be, each started when all others have connections.
class DataConnectionThreads {
 public:
  explicit DataConnectionThreads(unsigned most) : most_(most) {}
  /// The one with the fewest. Errors as DataConnectionThread::start().
  Result<DataConnectionThread*> next() LINKSPAN_EXCLUDES(mutex_);

 private:
  const unsigned most_;
  base::Mutex mutex_;
  std::vector<std::unique_ptr<DataConnectionThread>> all_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::transport::tcp
