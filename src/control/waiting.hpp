// control/waiting.hpp - what the event loops of this room have in common about a full machine.
//
// Threads: any thread.
#pragma once

#include <asio/posix/stream_descriptor.hpp>
#include <cerrno>

#include "linkspan/status.hpp"

namespace linkspan::control {

/// Lends `fd` to the loop. system: epoll has no room or no memory for it.
inline Status watch(asio::posix::stream_descriptor& by, int fd) {
  asio::error_code error;
  by.assign(fd, error);
  if (!error) return {};
  return {Code::system, Scope::process, "epoll_ctl: " + error.message()};
}

/// Of accept4: who connects stays in the socket's queue, and epoll would tell of it again at once,
/// so the next try has to wait.
inline bool is_full(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace linkspan::control
