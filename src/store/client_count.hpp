// store/client_count.hpp - the number of connections that made a request, for waits until all have
// ended.
//
// Threads: any thread.
#pragma once

#include <string>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "linkspan/status.hpp"

namespace linkspan::store {

class ClientCount {
 public:
  void add(int change) LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    clients_ += change;
    changed_.notify_all();
  }
  /// Waits until there are none. timed_out: the text has how many are left.
  Status drain(base::Deadline deadline) LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    while (clients_ != 0) {
      if (deadline.passed())
        return {Code::timed_out, Scope::peer,
                std::to_string(clients_) + " clients of the store had not finished"};
      changed_.wait(mutex_, deadline);
    }
    return {};
  }

 private:
  base::Mutex mutex_;
  base::Condition changed_;
  int clients_ LINKSPAN_GUARDED_BY(mutex_) = 0;
};

}  // namespace linkspan::store
