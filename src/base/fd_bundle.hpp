// base/fd_bundle.hpp - any number of file descriptors, each with a number beside it, in one.
//
// A frame holds few fds and a process has few to spare, but a range of GPU memory may consist of
// thousands of chunks. So the fds go into a socket, a batch at a time, each closed here as soon as
// it is in there; the socket's other end travels as one fd, and who receives it takes them out a
// batch at a time. The kernel counts fds under way against RLIMIT_NOFILE of the user (unix(7)).
// Off the path of a byte: at import.
// Threads: externally synchronised.
// Invariants: nothing here blocks; what arrives is hostile, and may be no parcel at all.
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
  /// With batches this small the default buffer of a socket holds kMax of them.
  static constexpr std::size_t kBatch = 128, kMax = 8192;

  static Result<FdBundle> create();
  /// In order. no_resource: no more fds may be under way, or more than kMax were put.
  Status put(Fd fd, std::uint64_t number);
  /// What travels. The parcel has ended.
  Result<Fd> seal();

  /// The next batch, with the sink of `sealed`; none: that was all. corrupt: it is no parcel, or
  /// not a whole one.
  static Result<std::vector<NumberedFd>> pop_batch(const Fd& sealed);

 private:
  FdBundle(Fd in, Fd out) noexcept : in_(std::move(in)), out_(std::move(out)) {}
  Status send_batch();

  Fd in_, out_;
  std::vector<NumberedFd> batch_;
  std::size_t sent_ = 0;
};

}  // namespace linkspan::base
