#include "transport/tcp/stream.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "transport/tcp/stream_thread.hpp"

namespace linkspan::transport::tcp {

void Stream::say(std::vector<std::byte> frame) {
  sender_.say(std::move(frame));
  wake();
}

void Stream::wake() { thread_.wake(); }

std::uint64_t Stream::traffic() const {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  (void)::getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &bytes);
  return info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

Stream::Turn Stream::turn() {
  Turn turn;
  if (!wire_->failure()) {
    std::vector<Answer> answers;
    auto received = sender_.is_full() ? false : receiver_.turn(readable_, answers);
    for (const Answer& each : answers) sender_.answer(encode(each.head), each.waits);
    auto sent = sender_.turn(writable_);
    turn.moved = (received.ok() && *received) || (sent.ok() && *sent) || !answers.empty();
    turn.watches = sender_.watches() || receiver_.watches();
    if (!received.ok()) wire_->fail(received.status());
    if (!sent.ok()) wire_->fail(sent.status());
    if (received.ok() && sent.ok()) return turn;
  }
  // What the kernel still holds of puts that have ended is not to land later; answers may.
  if (const linger at_once{.l_onoff = 1, .l_linger = 0}; wire_->abandons())
    (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  const bool sends = !sender_.stop(), receives = !receiver_.stop();
  turn.watches = sends || receives;
  turn.over = !turn.watches;
  return turn;
}

}  // namespace linkspan::transport::tcp
