// tests/support/fake_verbs/shared_lock.hpp - a lock in memory that processes share, whose holder
// may be killed or stopped at any time.
//
// A holder that has ended loses it to the next one that asks. One that is stopped loses it too, if
// it only copies: it does so by its Pad, in which the new holder sets the number of bytes to zero,
// so that nothing is copied any more when it goes on. Who commits, and changes what is under the
// lock, keeps it until it goes on or ends.
// Threads: any thread of any process.
// Invariants: all bits zero is a free lock, and an unused Pad.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace linkspan::transport::verbs::fake {

using Time = std::chrono::steady_clock::time_point;
inline Time now() { return std::chrono::steady_clock::now(); }

/// Returns field 22 of /proc/PID/task/TID/stat, which differs when a number is reused; 0 if there
/// is no such thread or it has ended. `state` gets its state's letter.
std::uint64_t thread_start_time(int pid, int tid, char* state = nullptr);

/// What a thread copies, in memory that processes share. Each thread has one of its own.
struct Pad {
  std::atomic<std::uint32_t> copying;
  iovec remote;  // the kernel reads it when the copy begins
};

class SharedLock {
 public:
  enum class As {
    owner,   // commits; comes before copiers, and takes the lock from one that is stopped
    copier,  // copies by its Pad, and may commit later
  };
  /// Returns false if the lock was not free before `deadline`. `pad` is that of the only copier
  /// there can be; without it a copier that is stopped keeps the lock.
  bool lock(As as, Time deadline, Pad* pad = nullptr);
  /// Whether the calling copier still holds it.
  bool held() const;
  /// From here on the calling copier keeps the lock. False: it has been taken away.
  bool commit();
  /// Does nothing if the lock has been taken from the caller.
  void unlock();

 private:
  bool take_from(std::uint64_t owner, Time deadline, Pad* pad);

  std::atomic<std::uint64_t> owner_;        // a thread, when it started, and kCommits; 0: free
  std::atomic<std::int64_t> wanted_until_;  // an owner waits, or did so shortly before
};

/// Holds a lock for a scope, if it was free in time.
class SharedHold {
 public:
  SharedHold(SharedLock& lock, std::chrono::milliseconds within, Pad* pad = nullptr,
             SharedLock::As as = SharedLock::As::owner)
      : lock_(lock), held_(lock.lock(as, now() + within, pad)) {}
  SharedHold(const SharedHold&) = delete;
  SharedHold& operator=(const SharedHold&) = delete;
  ~SharedHold() {
    if (held_) lock_.unlock();
  }
  explicit operator bool() const noexcept { return held_; }

 private:
  SharedLock& lock_;
  const bool held_;
};

}  // namespace linkspan::transport::verbs::fake
