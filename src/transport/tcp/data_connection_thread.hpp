// transport/tcp/data_connection_thread.hpp - the threads that move the bytes of data connections;
// each connection belongs to one.
//
// A thread polls its connections and sleeps in epoll, until an event or wake(), after a poll in
// which nothing moved. Edge-triggered events report only what is new, so the clock alone never
// decides to sleep (SleepDecision). It spins briefly before, and while a GPU copies for one of its
// connections.
// Threads: any thread may call; a SleepDecision is externally synchronised.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/mutex.hpp"
#include "base/wake_event.hpp"
#include "linkspan/status.hpp"

namespace linkspan::transport::tcp {

class DataConnection;

/// Decides whether a thread may sleep before its next poll.
class SleepDecision {
 public:
  static constexpr Duration kSpin = std::chrono::microseconds(100);  ///< About the cost of a sleep.

  explicit SleepDecision(base::Time now) : moved_at_(now) {}
  /// Records a poll of all data connections. `needs_polling`: one waits for something that raises
  /// no event. `now`: a time after the poll, read only if something `moved`.
  void on_poll(bool moved, bool needs_polling, base::Time now) noexcept {
    continues_ = moved || needs_polling;
    if (moved) moved_at_ = now;
  }
  /// Returns true only if the last poll moved nothing and nothing needs polling. The thread may
  /// have lost its core since then, so `now` may lie any time later.
  bool may_sleep(base::Time now) const noexcept { return !continues_ && now - moved_at_ >= kSpin; }

 private:
  base::Time moved_at_;
  bool continues_ = true;  // of the last poll; true before the first
};

class DataConnectionThread {
 public:
  /// Starts a thread. system: no thread or file descriptor is available.
  static Result<std::unique_ptr<DataConnectionThread>> start();
  DataConnectionThread(const DataConnectionThread&) = delete;
  DataConnectionThread& operator=(const DataConnectionThread&) = delete;
  /// Requires: the groups of its connections have failed. Waits for their GPUs, 10 s at most.
  ~DataConnectionThread();

  /// Serves the connection until it is over. system: epoll has no room for it.
  Status add(std::shared_ptr<DataConnection> connection) LINKSPAN_EXCLUDES(mutex_);
  void wake();
  std::size_t connections() const noexcept { return count_; }

 private:
  using DataConnections = std::vector<std::shared_ptr<DataConnection>>;  // shared with their groups
  DataConnectionThread(base::Fd epoll, base::WakeEvent wake_event)
      : epoll_(std::move(epoll)), wake_event_(std::move(wake_event)) {}
  void run(const std::stop_token& stop) LINKSPAN_EXCLUDES(mutex_);
  bool wait(Duration most);
  /// Moves new connections to `connections`. Returns false if memory is short.
  bool collect(DataConnections& connections) LINKSPAN_EXCLUDES(mutex_);

  const base::Fd epoll_;
  const base::WakeEvent wake_event_;
  std::atomic<bool> woken_{false}, sleeps_{false};
  std::atomic<std::size_t> count_{0};  // of its connections
  base::Mutex mutex_;
  DataConnections added_ LINKSPAN_GUARDED_BY(mutex_);
  std::jthread thread_;  // last member
};

/// Owns at most `most` threads; starts a new one when all others have connections.
class DataConnectionThreads {
 public:
  explicit DataConnectionThreads(unsigned most) : most_(most) {}
  /// Returns the thread with the fewest connections. Errors as DataConnectionThread::start().
  Result<DataConnectionThread*> next() LINKSPAN_EXCLUDES(mutex_);

 private:
  const unsigned most_;
  base::Mutex mutex_;
  std::vector<std::unique_ptr<DataConnectionThread>> all_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::transport::tcp
