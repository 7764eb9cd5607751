// control/session_end.hpp - how far a Session has ended, and which end SessionEvents has seen of
// it.
//
// Threads: is_disconnected(), any thread; all else on the Control thread.
// Invariants: report() calls on_disconnected(), then on_terminated(), once each.
#pragma once

#include <atomic>
#include <utility>

#include "linkspan/status.hpp"

namespace linkspan::control {

class Session;
class SessionEvents;

class SessionEnd {
 public:
  bool is_disconnected() const noexcept { return disconnected_; }
  bool is_terminated() const noexcept { return terminated_; }
  const Status& failure() const noexcept { return failure_; }  ///< Why it is disconnected.

  /// Returns true for the first call, whose `why` stays.
  bool disconnect(const Status& why) {
    const bool first = !disconnected_.exchange(true);
    if (first) failure_ = why;
    return first;
  }
  /// Ends all reports. Returns true if it was connected.
  bool drop() noexcept {
    dropped_ = true;
    return !disconnected_.exchange(true);
  }
  /// Returns true for the first call, after which the caller sends a goodbye.
  bool begin_goodbye() noexcept { return !std::exchange(goodbye_sent_, true); }
  bool sent_goodbye() const noexcept { return goodbye_sent_; }
  void receive_goodbye() noexcept { goodbye_received_ = true; }
  bool received_goodbye() const noexcept { return goodbye_received_; }
  /// Returns true if the peer has said goodbye, and waits for ours.
  bool owes_goodbye() const noexcept { return goodbye_received_ && !goodbye_sent_ && !dropped_; }
  void end_process() noexcept { process_ended_ = true; }

  /// Reports disconnection and termination. May throw if memory is exhausted; the caller retries.
  void report(Session& session, SessionEvents& events);

 private:
  std::atomic<bool> disconnected_{false};
  Status failure_;
  bool goodbye_sent_ = false, goodbye_received_ = false, process_ended_ = false;
  bool terminated_ = false, dropped_ = false, disconnect_reported_ = false;
};

}  // namespace linkspan::control
