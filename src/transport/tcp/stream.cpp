#include "transport/tcp/stream.hpp"

#include "transport/tcp/stream_thread.hpp"

namespace linkspan::transport::tcp {

void Stream::say(std::vector<std::byte> frame) {
  sender_.say(std::move(frame));
  wake();
}

void Stream::wake() { thread_.wake(); }

Stream::Turn Stream::turn() {
  Turn turn;
  if (!wire_->failure()) {
    std::vector<Head> answers;
    auto received = sender_.is_full() ? false : receiver_.turn(readable_, answers);
    for (const Head& each : answers) sender_.say(encode(each));
    auto sent = sender_.turn(writable_);
    turn.moved = (received.ok() && *received) || (sent.ok() && *sent) || !answers.empty();
    turn.watches = sender_.watches() || receiver_.watches();
    if (!received.ok()) wire_->fail(received.status());
    if (!sent.ok()) wire_->fail(sent.status());
    if (received.ok() && sent.ok()) return turn;
  }
  const bool sends = !sender_.stop(), receives = !receiver_.stop();
  turn.watches = sends || receives;
  turn.over = !turn.watches;
  return turn;
}

}  // namespace linkspan::transport::tcp
