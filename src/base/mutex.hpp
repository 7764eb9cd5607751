// base/mutex.hpp - std::mutex with clang's thread-safety annotations.
//
// clang checks them as errors (the tsan preset); g++ sees a plain mutex. libstdc++'s own types
// carry no annotations, hence the wrapper.
// Threads: any thread.
#pragma once

#include <condition_variable>
#include <mutex>

#include "base/clock.hpp"

#if defined(__clang__)
#define LINKSPAN_TSA(x) __attribute__((x))
#else
#define LINKSPAN_TSA(x)
#endif
#define LINKSPAN_GUARDED_BY(x) LINKSPAN_TSA(guarded_by(x))
#define LINKSPAN_REQUIRES(...) LINKSPAN_TSA(requires_capability(__VA_ARGS__))
#define LINKSPAN_EXCLUDES(...) LINKSPAN_TSA(locks_excluded(__VA_ARGS__))

namespace linkspan::base {

class LINKSPAN_TSA(capability("mutex")) Mutex {
 public:
  void lock() LINKSPAN_TSA(acquire_capability()) { mutex_.lock(); }
  void unlock() LINKSPAN_TSA(release_capability()) { mutex_.unlock(); }
  bool try_lock() LINKSPAN_TSA(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

class LINKSPAN_TSA(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) LINKSPAN_TSA(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() LINKSPAN_TSA(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// A condition variable over Mutex whose every wait has a deadline.
class Condition {
 public:
  /// Wakes at a notify, spuriously, or at the deadline of the system's clock.
  void wait(Mutex& mutex, Deadline deadline) LINKSPAN_REQUIRES(mutex) {
    changed_.wait_for(mutex, deadline.left());
  }
  void notify_all() noexcept { changed_.notify_all(); }

 private:
  std::condition_variable_any changed_;
};

}  // namespace linkspan::base
