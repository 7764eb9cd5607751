// control/control_plane.hpp - the Engine's control thread: it listens, connects, watches peers live
// and die, and carries what Sessions say.
//
// Threads: any thread may call; what Sessions do happens on the one thread that open() starts and
// close() joins. It blocks in epoll only, and in what a SessionEvents or a task does (imports take
// milliseconds).
// Invariants: after an end() that was OK no SessionEvents is called any more.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "control/session.hpp"
#include "control/socket_address.hpp"

namespace linkspan::control {

class ControlPlane {
 public:
  /// `us`, `events` and `log` outlive it.
  static Result<std::unique_ptr<ControlPlane>> open(const Identity& us, SessionEvents& events,
                                                    const base::Log& log);
  static Result<std::unique_ptr<ControlPlane>> open(Identity&&, SessionEvents&,
                                                    const base::Log&) = delete;
  virtual ~ControlPlane() = default;  ///< Closes, and waits for its thread.

  /// In the place of where it listened before by the same means, a Unix socket or TCP; where, with
  /// the port that the kernel chose. A stale Unix socket is replaced, a live one is `busy`, and so
  /// is a port. permission_denied, not_found: as resolve().
  virtual Result<Address> listen(const Address& address) = 0;
  /// Until both sides are ready. Where nobody listens yet, or who does ends it without a word, it
  /// is tried again until the deadline, then `unreachable`, or `timed_out` where no host answered.
  /// A refusal comes with its words. permission_denied, not_found: as resolve(), also waited for.
  /// permission_denied as well: the peer has another name than `expect`, if that is not empty.
  virtual Result<std::shared_ptr<Session>> connect(const Address& address, base::Deadline deadline,
                                                   const std::string& expect) = 0;
  Result<std::shared_ptr<Session>> connect(const Address& address, base::Deadline deadline) {
    return connect(address, deadline, {});
  }
  /// More of a Session's frames wait for room in its socket.
  virtual void write_when_ready(const std::shared_ptr<Session>& session) = 0;
  /// Another connection to where that remote Session was connected to, for a transport alone; as
  /// Channel::open_data_connection() says. Returns at once.
  virtual Status open_data_connection(const std::shared_ptr<Session>& session,
                                      std::string transport) = 0;
  /// Tells it why, if it still listens; it is lost, and a remote one gone. Returns at once.
  virtual void drop(const std::shared_ptr<Session>& session, const Status& why) = 0;
  /// A frame is likely to come within `time`: until then its thread looks for one instead of
  /// sleeping, which it takes 20 us to wake up from. Cheap where it does so already.
  virtual void stay_awake(Duration time) = 0;
  /// As Session::send_goodbye(), to all; stops listening. Peers that end are still heard.
  virtual void send_goodbye() = 0;
  /// As Session::send_goodbye(), to one. Returns at once.
  virtual void send_goodbye(std::uint64_t session) = 0;
  /// Says goodbye if nobody has, hears nothing more, joins the thread. Waits `deadline` for what is
  /// queued. timed_out: the thread stands still, Limits::ending after that; end it again: its
  /// destructor waits for it.
  virtual Status end(base::Deadline deadline) = 0;
  void close(base::Deadline deadline) { (void)end(deadline); }  ///< The same.
};

}  // namespace linkspan::control
