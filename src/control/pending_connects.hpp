// control/pending_connects.hpp - the calls of ControlPlane::connect() that wait for the Control
// thread, and the end of all of them when the Engine closes. Off the path of a byte.
//
// Threads: any thread.
#pragma once

#include <memory>
#include <string>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "control/session.hpp"
#include "control/socket_address.hpp"

namespace linkspan::control {

/// Contains the answer to one attempt of connect(). PendingConnects guards all but `expect`.
struct ConnectResult {
  ExpectedPeer expect;  // the Session takes it
  bool decided = false;
  bool abandoned = false;  // connect() does not wait any more
  Status status;
  std::shared_ptr<Session> session;  // shared with the ConnectionTable
};

class PendingConnects {
 public:
  static Status closing();  ///< Returns what a connect() returns after close().
  /// Ends all waits, now and later. Returns false if that was done before.
  bool close() LINKSPAN_EXCLUDES(mutex_);
  /// Waits for `pause` before the next attempt. canceled: the Engine closes, or interrupted. After
  /// the deadline: the reason why the last attempt failed.
  Status await_retry(Duration pause, base::Deadline deadline, const Status& failure)
      LINKSPAN_EXCLUDES(mutex_);
  /// Waits for decide(). timed_out: the text names `address`. canceled: as await_retry().
  Result<std::shared_ptr<Session>> await(ConnectResult& result, base::Deadline deadline,
                                         const std::string& address) LINKSPAN_EXCLUDES(mutex_);
  /// Returns false if connect() does not wait any more.
  bool decide(ConnectResult& result, const Status& status,
              std::shared_ptr<Session> session = nullptr) LINKSPAN_EXCLUDES(mutex_);

 private:
  base::Mutex mutex_;
  base::Condition changed_;
  bool closing_ LINKSPAN_GUARDED_BY(mutex_) = false;
};

}  // namespace linkspan::control
