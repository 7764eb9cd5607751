#include "tests/faults/raw_peer.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "base/clock.hpp"
#include "tests/support/raw_peer.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {
namespace {

using control::FrameOp;

base::Deadline soon() { return base::Deadline::after(base::Clock::steady(), 10s); }

void wait(const base::FdChannel& channel, short events, const base::Deadline& limit) {
  pollfd entry{.fd = channel.fd(), .events = events, .revents = 0};
  ::poll(&entry, 1, limit.left_ms());
}

/// Connects, also if many others wait to be accepted.
base::Fd connected(const std::string& address) {
  const base::Deadline limit = soon();
  while (true) {
    auto socket = socket_to(address);
    if (socket.status().code() != Code::no_resource || limit.passed())
      return take(std::move(socket));
    std::this_thread::yield();
  }
}

}  // namespace

RawPeer::RawPeer(const std::string& address) : channel_(connected(address)) {}

bool RawPeer::send(std::uint16_t op, std::span<const std::byte> payload, std::uint64_t id,
                   std::span<base::Fd> fds) {
  const base::Deadline limit = soon();
  const base::FrameHeader header{
      .length = 0, .version = version, .op = op, .id = id, .incarnation = kIncarnation};
  if (!channel_.queue(header, payload, fds).ok()) return false;
  while (channel_.wants_write() && !limit.passed()) {
    if (!channel_.flush().ok()) return false;
    if (channel_.wants_write()) wait(channel_, POLLOUT, limit);
  }
  return !channel_.wants_write();
}

control::Hello RawPeer::hello() {
  return {.engine = "odd", .process = base::this_process(), .key_share = {}, .transports = {}};
}

bool RawPeer::greet(const control::Hello& hello) { return greet(control::encode(hello)); }

bool RawPeer::greet(std::span<const std::byte> hello) {
  base::Fd fds[] = {take(base::open_pidfd(::getpid()))};
  const std::size_t count = base::is_unix_socket(channel_.fd()) ? 1 : 0;
  return send(FrameOp::hello, hello, 0, std::span(fds, count)) && send(FrameOp::ready, {}, 0);
}

std::optional<base::Frame> RawPeer::next() {
  const base::Deadline limit = soon();
  while (!limit.passed()) {
    auto frame = channel_.receive();
    if (!frame.ok()) return std::nullopt;
    if (!*frame) {
      wait(channel_, POLLIN, limit);
      continue;
    }
    const auto op = static_cast<FrameOp>((*frame)->header.op);
    if (op != FrameOp::hello && op != FrameOp::ready) return std::move(**frame);
  }
  ADD_FAILURE() << "the other side neither answered nor closed";
  return std::nullopt;
}

Status RawPeer::refusal() {
  const auto said = next();
  if (!said) return {Code::disconnected, Scope::peer, "closed without a word"};
  EXPECT_EQ(static_cast<FrameOp>(said->header.op), FrameOp::error);
  return control::decode_error(said->payload);
}

}  // namespace linkspan::test
