// bench/tcp_ways/frames.hpp - what goes over one connection of bench_tcp_ways, by whichever calls:
// frames of at most 1 MiB, each behind a head that says where its bytes belong, as in the TCP
// transport.
//
// Threads: externally synchronised.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "linkspan/status.hpp"

namespace linkspan::bench {

inline constexpr std::uint64_t kFrame = std::uint64_t{1} << 20;

struct Head {  // both ends are of one process
  std::uint64_t at = 0, bytes = 0;
};

/// One to be sent. Its message points into itself: it stays where it was laid out.
struct Frame {
  Head head;
  std::array<iovec, 2> parts{};
  msghdr message{};
};

/// Of `memory` every frame of which the number, modulo `of`, is `first`.
std::vector<Frame> lay_out(std::span<std::byte> memory, unsigned first, unsigned of);

/// Takes off what went by. True: that was all of it.
bool advance(msghdr& message, std::size_t bytes) noexcept;

/// The receiving end: bytes go straight to where they belong, and the next head comes in the same
/// call.
class Incoming {
 public:
  Incoming(std::span<std::byte> memory, std::size_t frames);
  Incoming(const Incoming&) = delete;
  Incoming& operator=(const Incoming&) = delete;
  ~Incoming() = default;

  bool done() const noexcept { return done_; }
  msghdr& next() noexcept { return message_; }  ///< To be filled; not once it is done.
  /// corrupt: a head that leads out of the memory.
  Status got(std::size_t bytes);

 private:
  std::span<std::byte> memory_;
  std::size_t heads_;  // that are still to come
  bool at_head_ = true, done_ = false;
  Head head_;
  std::array<iovec, 2> parts_{};
  msghdr message_{};
};

}  // namespace linkspan::bench
