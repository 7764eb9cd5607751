// base/fd_bundle.hpp - packs any number of file descriptors, each with a number, into one.
//
// A frame carries few fds and a process has few to spare, but a range of GPU memory may consist of
// thousands of chunks. So the fds are sent into a socket pair in batches, and each is closed here
// once it is in the socket. The socket's other end travels as one fd, and the receiver reads the
// fds from it in batches. The kernel counts fds in flight against RLIMIT_NOFILE (unix(7)).
// Off the path of a byte: at import.
// Threads: externally synchronised.
// Invariants: nothing blocks. What arrives is hostile, and may be no bundle at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/fd.hpp"

namespace linkspan::base {

struct NumberedFd {
  Fd fd;
  std::uint64_t number = 0;
};

class FdBundle {
 public:
  /// Fits kMax fds into the default buffer of a socket.
  static constexpr std::size_t kBatch = 128, kMax = 8192;

  static Result<FdBundle> create();
  /// Appends an fd. no_resource: the limit of fds in flight is reached, or there are more than
  /// kMax.
  Status put(Fd fd, std::uint64_t number);
  /// Returns the fd to send. The bundle accepts no more fds.
  Result<Fd> seal();

  /// Reads the next batch; an empty one is the end. The fds get the sink of `sealed`. corrupt:
  /// `sealed` is no complete bundle.
  static Result<std::vector<NumberedFd>> pop_batch(const Fd& sealed);

 private:
  FdBundle(Fd in, Fd out) noexcept : in_(std::move(in)), out_(std::move(out)) {}
  Status send_batch();

  Fd in_, out_;
  std::vector<NumberedFd> batch_;
  std::size_t sent_ = 0;
};

}  // namespace linkspan::base
