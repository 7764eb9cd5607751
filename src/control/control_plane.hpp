// control/control_plane.hpp - the Engine's Control thread: it listens, connects, watches peers
// start and end, and carries the frames of Sessions. Off the path of a byte.
//
// Threads: any thread may call. Sessions run on the one thread that open() starts and end() joins.
// That thread blocks in epoll and in what SessionEvents or a task does (an import takes
// milliseconds).
// Invariants: SessionEvents is not called after an end() that returned OK.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "control/session.hpp"
#include "control/socket_address.hpp"

namespace linkspan::control {

class ControlPlane {
 public:
  /// Starts the Control thread. `us`, `events` and `log` outlive the ControlPlane.
  static Result<std::unique_ptr<ControlPlane>> open(const Identity& us, SessionEvents& events,
                                                    const base::Log& log);
  static Result<std::unique_ptr<ControlPlane>> open(Identity&&, SessionEvents&,
                                                    const base::Log&) = delete;
  virtual ~ControlPlane() = default;  ///< Closes, and waits for its thread.

  /// Listens at `address` and returns it with the port that the kernel chose. A second call
  /// replaces the previous address of the same family (Unix socket or TCP). Replaces a stale Unix
  /// socket. busy: another process listens there. permission_denied, not_found: as resolve().
  virtual Result<SocketAddress> listen(const SocketAddress& address) = 0;
  /// Connects to the Engine that has these addresses, and returns once both sides are ready. Tries
  /// Unix sockets first, then all TCP addresses together. Retries until the deadline while no
  /// process listens there or the listener closes without a reply. unreachable: none listened by
  /// the deadline; timed_out: no host answered. A refusal has the peer's text. permission_denied,
  /// not_found: as resolve(), returned at once; a missing Unix socket is retried.
  /// permission_denied also: the peer has another name than `expect`, unless that is empty, or is
  /// not the Engine of the address. An address that is refused is tried no more. `secret` stands in
  /// for the Engine's at TCP addresses, which may then lie beyond loopback; TLS is used if the
  /// Engine uses it. Empty: the Engine's.
  virtual Result<std::shared_ptr<Session>> connect(std::span<const SocketAddress> addresses,
                                                   base::Deadline deadline,
                                                   const std::string& expect,
                                                   std::string_view secret) = 0;
  Result<std::shared_ptr<Session>> connect(const SocketAddress& address, base::Deadline deadline,
                                           const std::string& expect = {},
                                           std::string_view secret = {}) {
    return connect(std::span(&address, 1), deadline, expect, secret);
  }
  /// Opens one more connection to the address of a remote Session, for one transport, as
  /// Channel::open_data_connection() describes. Returns at once.
  virtual Status open_data_connection(const std::shared_ptr<Session>& session,
                                      std::string transport) = 0;
  /// Sends `why` to the peer if it still reads, and disconnects it. A remote Session terminates as
  /// well. Returns at once.
  virtual void drop(const std::shared_ptr<Session>& session, const Status& why) = 0;
  /// Makes the Control thread poll instead of sleep for `time`, because a frame is likely to come.
  /// Saves the 20 us of a wake-up. Cheap if the thread polls already.
  virtual void stay_awake(Duration time) = 0;
  /// Calls Session::send_goodbye() for all and stops listening. Ends of peers are still seen.
  virtual void send_goodbye() = 0;
  /// Calls Session::send_goodbye() for one Session. Returns at once.
  virtual void send_goodbye(std::uint64_t session) = 0;
  /// Says goodbye unless that was done, stops reading and joins the thread. Waits until `deadline`
  /// for queued frames. timed_out: the thread blocked for PeerLimits::ending beyond the deadline;
  /// call end() again. The destructor waits for the thread.
  virtual Status end(base::Deadline deadline) = 0;
  void close(base::Deadline deadline) { (void)end(deadline); }  ///< Calls end().
};

}  // namespace linkspan::control
