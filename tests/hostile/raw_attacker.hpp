// tests/hostile/raw_attacker.hpp - a connection to the victim that sends frames by hand, for an
// attack that the test can end.
//
// Threads: externally synchronised.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "base/fd_channel.hpp"
#include "base/process.hpp"
#include "control/handshake.hpp"
#include "tests/support/raw_peer.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {

class RawAttacker {
 public:
  /// Stays unconnected if too many wait to be accepted; say() and hear() then report that.
  RawAttacker(const std::string& address, std::stop_token stop) : stop_(std::move(stop)) {
    if (auto socket = socket_to(address); socket.ok()) channel_.emplace(*std::move(socket));
  }

  bool connected() const noexcept { return channel_.has_value(); }
  int fd() const noexcept { return channel_->fd(); }

  /// Waits for room. Returns false if the victim has closed, or the attack ends.
  bool say(control::FrameOp op, std::span<const std::byte> payload, std::span<base::Fd> fds = {}) {
    if (!channel_) return false;
    const base::FrameHeader header{.length = 0,
                                   .op = static_cast<std::uint16_t>(op),
                                   .id = ++frames_,
                                   .incarnation = kRawIncarnation};
    if (!channel_->queue(header, payload, fds).ok()) return false;
    do {
      const Status flushed = channel_->flush();
      if (!flushed.ok() && flushed.code() != Code::no_resource) return false;
      if (!channel_->wants_write()) return true;
      wait(POLLOUT);
    } while (!stop_.stop_requested());
    return false;
  }
  bool to_transport(std::uint16_t op, std::span<const std::byte> bytes,
                    std::span<base::Fd> fds = {}, const std::string& transport = "local") {
    return say(control::FrameOp::for_transport, control::encode_for_transport(transport, op, bytes),
               fds);
  }
  /// Sends a hello as an Engine would, with these transports.
  bool greet(std::vector<control::TransportAddress> transports = {}) {
    if (!channel_) return false;
    base::Fd fds[] = {take(base::open_pidfd(::getpid()))};
    const std::size_t count = base::is_unix_socket(channel_->fd()) ? 1 : 0;
    const control::Hello hello{.engine = "hostile",
                               .process = base::this_process(),
                               .key_share = {},
                               .transports = std::move(transports)};
    return say(control::FrameOp::hello, control::encode(hello), std::span(fds, count)) &&
           say(control::FrameOp::ready, {});
  }
  /// Returns the next frame; nullopt if the victim has closed, or the attack ends.
  std::optional<base::Frame> hear() {
    while (channel_ && !stop_.stop_requested()) {
      auto frame = channel_->receive();
      if (!frame.ok()) return std::nullopt;
      if (*frame) return std::move(**frame);
      wait(POLLIN);
    }
    return std::nullopt;
  }

 private:
  void wait(short events) {
    pollfd entry{.fd = channel_->fd(), .events = events, .revents = 0};
    ::poll(&entry, 1, 20);
  }

  const std::stop_token stop_;
  std::optional<base::FdChannel> channel_;
  std::uint64_t frames_ = 0;
};

}  // namespace linkspan::test
