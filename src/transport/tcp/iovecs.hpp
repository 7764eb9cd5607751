// transport/tcp/iovecs.hpp - what is left of a frame, as the kernel sends and fills it.
//
// On the path of a byte: a Sender and a Receiver lay a frame out as iovecs and pass what is left of
// them to each call of the socket.
// Threads: externally synchronised.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace linkspan::transport::tcp {

class Iovecs {
 public:
  std::size_t size() const noexcept { return all_.size(); }  ///< Those moved already included.
  bool empty() const noexcept { return all_.empty(); }
  /// Returns what is left, from the front.
  std::span<iovec> left() noexcept { return std::span(all_).subspan(next_); }
  std::uint64_t bytes_left() const noexcept { return bytes_left_; }

  void push_back(void* at, std::size_t bytes);
  /// Appends the range. Extends the last iovec instead if the range directly follows it, so
  /// contiguous pages in a staging buffer use one iovec.
  void append(void* at, std::size_t bytes);
  /// Appends `bytes` bytes that all lie in `buffer`, which is used again and again.
  void repeat(std::span<std::byte> buffer, std::uint64_t bytes);
  /// Replaces what is left of [from, to) by repetitions of `buffer`. Returns the end of these.
  std::size_t replace(std::size_t from, std::size_t to, std::span<std::byte> buffer);
  /// Removes moved bytes from the front. Returns true if nothing is left.
  bool advance(std::size_t bytes) noexcept;
  void clear() noexcept;

 private:
  std::vector<iovec> all_;
  std::size_t next_ = 0;  // the first that is left
  std::uint64_t bytes_left_ = 0;
};

}  // namespace linkspan::transport::tcp
