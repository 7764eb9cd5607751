// tools/linkspan/ps/engines.hpp - asks the Engines of running processes by their introspection
// sockets.
//
// Threads: externally synchronised.
// Invariants: a process that is stopped or hostile delays an answer by kPatience at most.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/fd_closer.hpp"
#include "control/introspection_socket.hpp"

namespace linkspan::tool {

class Engines {
 public:
  static constexpr auto kPatience = std::chrono::seconds(2);

  /// Which processes are asked.
  struct Which {
    pid_t pid = 0;         ///< 0: all.
    bool any_uid = false;  ///< Root asks those of other users too.
  };
  struct Answer {
    pid_t pid = 0;  ///< 0: in an invisible pid namespace.
    Result<std::string> text;
  };

  /// Asks all Engines that this user may ask, then awaits all answers. permission_denied: `pid` is
  /// another user's.
  Result<std::vector<Answer>> ask(control::IntrospectionOp question, const Which& which) const;

 private:
  // closes connections, which any process with such a socket name may have accepted
  base::FdCloser closer_;
};

/// Returns the reason, as far as it is visible, why a process answered on no socket.
Status why_absent(pid_t pid);

}  // namespace linkspan::tool
