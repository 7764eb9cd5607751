// control/introspection_socket.hpp - the socket on which an Engine answers the operator's tool, and
// the tool's side of it.
//
// Each Engine, also one that does not listen for peers, has a Unix socket "linkspan-ps-INCARNATION"
// in its user's socket folder, which other users cannot enter. The tool finds it there, or in the
// kernel's table of Unix sockets. SO_PEERCRED decides access on both sides: the Engine answers its
// own uid and root, and the tool trusts the uid and pid that the kernel names, never the path. A
// connection carries one query in frames (base/fd_channel.hpp): an op without payload. The answer
// is `text` frames and `end`, or `error`.
// Threads: any thread; an IntrospectionCall is externally synchronised.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/fd_channel.hpp"
#include "base/fd_closer.hpp"
#include "linkspan/status.hpp"

namespace linkspan::control {

/// Values are wire format. Unknown ops are answered `unsupported`.
enum class IntrospectionOp : std::uint16_t {
  dump = 1,
  metrics = 2,
  text = 3,  // part of the answer, UTF-8
  end = 4,
  error = 8,
};

struct IntrospectionSocket {
  base::Fd listening;
  std::string path;  ///< To unlink when it closes.
};
/// Creates an Engine's socket. Creates the folder as secure_folder() does, and removes sockets of
/// dead Engines once they are many.
Result<IntrospectionSocket> listen_for_introspection(const std::string& folder,
                                                     std::uint64_t incarnation);

/// Returns the sockets in `folder` and those of all users in this network namespace.
std::vector<std::string> introspection_sockets(const std::string& folder);

/// One query to one Engine.
class IntrospectionCall {
 public:
  /// Connects. not_found: the Engine has ended. unreachable: too many clients. permission_denied:
  /// the Engine is another user's. With a `closer` the connection is closed by it, because the
  /// other side may be hostile.
  static Result<IntrospectionCall> connect(const std::string& socket,
                                           const base::FdCloser* closer = nullptr);

  int fd() const noexcept { return channel_.fd(); }  ///< Borrowed, for poll(2).
  pid_t pid() const noexcept { return pid_; }        ///< 0: in an invisible pid namespace.
  uid_t uid() const noexcept { return uid_; }

  Status ask(IntrospectionOp question);
  /// Returns the answer. timed_out: the Control thread has not answered. permission_denied,
  /// unsupported: the answer of the Engine.
  Result<std::string> answer(base::Deadline deadline);

 private:
  IntrospectionCall(base::Fd socket, pid_t pid, uid_t uid)
      : channel_(std::move(socket)), pid_(pid), uid_(uid) {}

  base::FdChannel channel_;
  pid_t pid_;
  uid_t uid_;
};

}  // namespace linkspan::control
