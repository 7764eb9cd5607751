// net/descriptor_watch.hpp - assigns descriptors to the stream_descriptors of the event loops.
//
// Threads: any thread.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include "base/fd.hpp"
#include "linkspan/status.hpp"

namespace linkspan::net {

/// Waits for a borrowed descriptor, which its destructor leaves open.
class BorrowedDescriptor : public asio::posix::stream_descriptor {
 public:
  explicit BorrowedDescriptor(asio::io_context& io) : asio::posix::stream_descriptor(io) {}
  BorrowedDescriptor(const BorrowedDescriptor&) = delete;
  BorrowedDescriptor& operator=(const BorrowedDescriptor&) = delete;
  ~BorrowedDescriptor() {
    if (is_open()) (void)release();
  }
};

/// Assigns a borrowed `fd`; release() it before its owner closes it. system: epoll has no room or
/// memory.
inline Status watch(asio::posix::stream_descriptor& by, int fd) {
  asio::error_code error;
  by.assign(fd, error);
  if (!error) return {};
  return {Code::system, Scope::process, "epoll_ctl: " + error.message()};
}

/// Assigns `fd` and passes its ownership. system: as watch().
inline Status assign(asio::posix::stream_descriptor& to, base::Fd fd) {
  if (Status status = watch(to, fd.get()); !status.ok()) return status;
  (void)fd.release();
  return {};
}

}  // namespace linkspan::net
