// net/descriptor_watch.hpp - what the event loops of this room have in common.
//
// Threads: any thread.
#pragma once

#include <asio/posix/stream_descriptor.hpp>

#include "base/fd.hpp"
#include "linkspan/status.hpp"

namespace linkspan::net {

/// Lends `fd` to the loop. system: epoll has no room or no memory for it.
inline Status watch(asio::posix::stream_descriptor& by, int fd) {
  asio::error_code error;
  by.assign(fd, error);
  if (!error) return {};
  return {Code::system, Scope::process, "epoll_ctl: " + error.message()};
}

/// Gives it `fd`, to close with itself. system: as watch().
inline Status assign(asio::posix::stream_descriptor& to, base::Fd fd) {
  if (Status status = watch(to, fd.get()); !status.ok()) return status;
  (void)fd.release();
  return {};
}

}  // namespace linkspan::net
