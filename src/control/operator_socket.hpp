// control/operator_socket.hpp - where an Engine answers the operator's tool, and the tool's side.
//
// Each Engine of a process, whether it listens for peers or not, has an abstract Unix socket
// "linkspan-ps/UID/INCARNATION": nothing lies in a folder, so nothing is left behind by a SIGKILL
// and no folder has to be agreed on. Who may ask is decided by SO_PEERCRED on both sides: the
// Engine answers its own uid and root, and the tool believes the uid and pid that the kernel names,
// never the socket's name. A network namespace has its own names. One question a connection, in
// frames (base/fd_channel.hpp): op and no payload; the answer is `text` frames and `end`, or
// `error`.
// Threads: any thread; an OperatorCall is externally synchronised.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/fd_channel.hpp"
#include "linkspan/status.hpp"

namespace linkspan::control {

/// Numbers are wire format. What is missing here is answered `unsupported`.
enum class OperatorOp : std::uint16_t {
  dump = 1,
  metrics = 2,
  text = 3,  // of the answer: UTF-8, some of it
  end = 4,
  error = 8,
};

/// The Engine's, listening.
Result<base::Fd> listen_for_operators(std::uint64_t incarnation);

/// Those of this network namespace, of every user. `system`: /proc/net/unix cannot be read.
Result<std::vector<std::string>> operator_sockets();

/// One question to one Engine.
class OperatorCall {
 public:
  /// not_found, or unreachable: it has ended meanwhile, or too many ask.
  static Result<OperatorCall> connect(const std::string& socket);

  int fd() const noexcept { return channel_.fd(); }  ///< A loan, for poll.
  pid_t pid() const noexcept { return pid_; }        ///< 0: in a pid namespace that we cannot see.
  uid_t uid() const noexcept { return uid_; }

  Status ask(OperatorOp question);
  /// timed_out: its Control thread has not answered. permission_denied, unsupported: its words.
  Result<std::string> answer(base::Deadline deadline);

 private:
  OperatorCall(base::Fd socket, pid_t pid, uid_t uid)
      : channel_(std::move(socket)), pid_(pid), uid_(uid) {}

  base::FdChannel channel_;
  pid_t pid_;
  uid_t uid_;
};

}  // namespace linkspan::control
