// control/introspection_socket.hpp - where an Engine answers the operator's tool, and the tool's
// side.
//
// Each Engine of a process, whether it listens for peers or not, has a Unix socket
// "linkspan-ps-INCARNATION" in the folder of its user's sockets, which nobody else enters. The tool
// finds it there, or, of other folders, in the kernel's table of Unix sockets. Who may ask is
// decided by SO_PEERCRED on both sides: the Engine answers its own uid and root, and the tool
// believes the uid and pid that the kernel names, never the socket's path. One question a
// connection, in frames (base/fd_channel.hpp): op and no payload; the answer is `text` frames and
// `end`, or `error`. Threads: any thread; an IntrospectionCall is externally synchronised.
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

/// Numbers are wire format. What is missing here is answered `unsupported`.
enum class IntrospectionOp : std::uint16_t {
  dump = 1,
  metrics = 2,
  text = 3,  // of the answer: UTF-8, some of it
  end = 4,
  error = 8,
};

struct IntrospectionSocket {
  base::Fd listening;
  std::string path;  ///< To remove at its end.
};
/// The Engine's. Makes the folder as secure_folder() does, and removes from it what dead Engines
/// have left, once that is much.
Result<IntrospectionSocket> listen_for_introspection(const std::string& folder,
                                                     std::uint64_t incarnation);

/// Those in `folder`, and those of this network namespace, of every user.
std::vector<std::string> introspection_sockets(const std::string& folder);

/// One question to one Engine.
class IntrospectionCall {
 public:
  /// not_found: it has ended. unreachable: too many ask. permission_denied: another user's. A
  /// `closer` ends the connection, for whoever answers may be hostile.
  static Result<IntrospectionCall> connect(const std::string& socket,
                                           const base::FdCloser* closer = nullptr);

  int fd() const noexcept { return channel_.fd(); }  ///< A loan, for poll.
  pid_t pid() const noexcept { return pid_; }        ///< 0: in a pid namespace that we cannot see.
  uid_t uid() const noexcept { return uid_; }

  Status ask(IntrospectionOp question);
  /// timed_out: its Control thread has not answered. permission_denied, unsupported: its words.
  Result<std::string> answer(base::Deadline deadline);

 private:
  IntrospectionCall(base::Fd socket, pid_t pid, uid_t uid)
      : channel_(std::move(socket)), pid_(pid), uid_(uid) {}

  base::FdChannel channel_;
  pid_t pid_;
  uid_t uid_;
};

}  // namespace linkspan::control
