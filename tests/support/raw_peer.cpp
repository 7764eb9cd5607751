#include "tests/support/raw_peer.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/process.hpp"
#include "control/socket_address.hpp"
#include "net/staggered_connect.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {

using control::FrameOp;

Result<base::Fd> socket_to(const std::string& address) {
  const control::SocketAddress at = take(control::parse_address(address, {}));
  if (!at.is_tcp()) return control::connect_to(at.path);
  return net::connect_to(take(control::resolve(at, false)),
                         base::Deadline::after(base::Clock::steady(), 10s));
}

base::FdChannel connect_raw(const std::string& address) {
  return base::FdChannel(take(socket_to(address)));
}

void send_raw(base::FdChannel& channel, FrameOp op, std::span<const std::byte> payload,
              std::uint64_t incarnation, std::span<base::Fd> fds) {
  const Status queued = channel.queue(
      {.length = 0, .op = static_cast<std::uint16_t>(op), .id = 7, .incarnation = incarnation},
      payload, fds);
  EXPECT_TRUE(queued.ok()) << queued.to_string();
  (void)channel.flush();
}

void greet_raw(base::FdChannel& channel) {
  base::Fd fds[] = {take(base::open_pidfd(::getpid()))};
  const std::size_t count = base::is_unix_socket(channel.fd()) ? 1 : 0;
  const control::Hello hello{
      .engine = "odd", .process = base::this_process(), .key_share = {}, .transports = {}};
  send_raw(channel, FrameOp::hello, encode(hello), kRawIncarnation, std::span(fds, count));
  send_raw(channel, FrameOp::ready, {});
}

std::optional<base::Frame> any_raw(base::FdChannel& channel) {
  const auto limit = base::Deadline::after(base::Clock::steady(), std::chrono::seconds(10));
  while (!limit.passed()) {
    if (channel.wants_write()) (void)channel.flush();
    auto frame = channel.receive();
    if (!frame.ok()) return std::nullopt;
    if (*frame) return std::move(**frame);
    const short events = channel.wants_write() ? POLLIN | POLLOUT : POLLIN;
    pollfd wait{.fd = channel.fd(), .events = events, .revents = 0};
    ::poll(&wait, 1, limit.left_ms());
  }
  ADD_FAILURE() << "the Engine neither answered nor closed";
  return std::nullopt;
}

std::optional<base::Frame> next_raw(base::FdChannel& channel) {
  for (;;) {
    auto frame = any_raw(channel);
    const auto op = frame ? static_cast<FrameOp>(frame->header.op) : FrameOp::error;
    if (op != FrameOp::hello && op != FrameOp::ready) return frame;
  }
}

}  // namespace linkspan::test
