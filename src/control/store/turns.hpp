// control/store/turns.hpp - one caller at a time, and the others wait by their deadlines.
//
// What std::mutex is not: held while one waits for a server, so those who queue must be able to
// give up.
// Threads: any thread.
#pragma once

#include <utility>

#include "base/mutex.hpp"

namespace linkspan::control::store {

class Turns {
 public:
  class Turn {
   public:
    explicit Turn(Turns* of) noexcept : of_(of) {}
    Turn(Turn&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
      if (of_ != nullptr) of_->give();
    }
    /// False: the deadline has passed.
    explicit operator bool() const noexcept { return of_ != nullptr; }

   private:
    Turns* of_;
  };

  Turn take(base::Deadline deadline) LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    while (taken_) {
      if (deadline.passed()) return Turn(nullptr);
      changed_.wait(mutex_, deadline);
    }
    taken_ = true;
    return Turn(this);
  }

 private:
  void give() LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    taken_ = false;
    changed_.notify_all();
  }

  base::Mutex mutex_;
  base::Condition changed_;
  bool taken_ LINKSPAN_GUARDED_BY(mutex_) = false;
};

}  // namespace linkspan::control::store
