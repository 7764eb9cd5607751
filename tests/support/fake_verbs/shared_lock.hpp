// tests/support/fake_verbs/shared_lock.hpp - a lock in memory that processes share, whose holder
// may be killed or stopped at any time.
//
// A holder that has ended loses it to the next one that asks. So does a holder that is stopped, but
// only where its system call has copied bytes: what it copied has landed, and it copies no more
// before it asks again. Whoever is stopped elsewhere keeps the lock until it goes on or ends.
// Threads: any thread of any process.
// Invariants: all bits zero is a free lock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace linkspan::transport::verbs::fake {

using Time = std::chrono::steady_clock::time_point;
inline Time now() { return std::chrono::steady_clock::now(); }

/// Returns field 22 of /proc/PID/task/TID/stat, which differs when a number is reused; 0 if there
/// is no such thread or it has ended. `state` gets its state's letter.
std::uint64_t thread_start_time(int pid, int tid, char* state = nullptr);

class SharedLock {
 public:
  /// Returns false if the lock was not free before `deadline`. An `urgent` caller comes before
  /// those that are not.
  bool lock(Time deadline, bool urgent = true);
  /// Does nothing if the lock has been taken from the caller. `urgent` as in lock().
  void unlock(bool urgent = true);

 private:
  std::atomic<std::uint64_t> owner_;        // a thread and when it started; 0: free
  std::atomic<std::int64_t> wanted_until_;  // an urgent caller waits, or did so shortly before
};

/// Holds a lock for a scope, if it was free in time.
class SharedHold {
 public:
  SharedHold(SharedLock& lock, std::chrono::milliseconds within, bool urgent = true)
      : lock_(lock), urgent_(urgent), held_(lock.lock(now() + within, urgent)) {}
  SharedHold(const SharedHold&) = delete;
  SharedHold& operator=(const SharedHold&) = delete;
  ~SharedHold() {
    if (held_) lock_.unlock(urgent_);
  }
  explicit operator bool() const noexcept { return held_; }

 private:
  SharedLock& lock_;
  const bool urgent_;
  const bool held_;
};

}  // namespace linkspan::transport::verbs::fake
