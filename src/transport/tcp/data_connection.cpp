#include "transport/tcp/data_connection.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "transport/tcp/data_connection_thread.hpp"

namespace linkspan::transport::tcp {

void DataConnection::send_now() {
  // What has failed its thread finds as well.
  if (const auto sent = sender_.send_now(); !sent.ok() || !*sent) wake();
}

void DataConnection::wake() { thread_.wake(); }

std::uint64_t DataConnection::traffic() const {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  (void)::getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &bytes);
  return info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

DataConnection::Turn DataConnection::turn(bool rung) {
  Turn turn;
  if (reset_) wire_->fail(Status(Code::disconnected, Scope::peer, "a data connection was reset"));
  if (!wire_->has_failed()) {
    if (const auto revocations = wire_->revocations(); revocations != let_go_) {
      let_go_ = revocations;
      receiver_.let_go();
      sender_.let_go();
    }
    std::vector<Answer> answers;
    const bool full = sender_.is_full();
    auto received = full ? false : receiver_.turn(readable_, answers);
    for (const Answer& each : answers) sender_.answer(encode(each.head), each.waits);
    auto sent = Result<bool>(false);
    if (sends_ || rung || !answers.empty()) {
      sent = sender_.turn();
      turn.watches = sender_.watches();
      sends_ = turn.watches || (sent.ok() && *sent);
    }
    turn.moved = (received.ok() && *received) || (sent.ok() && *sent) || !answers.empty();
    // Another thread may have sent what was in the way: no event tells of what came meanwhile.
    turn.moved |= full && !sender_.is_full();
    turn.watches |= receiver_.watches();
    if (!received.ok()) wire_->fail(received.status());
    if (!sent.ok()) wire_->fail(sent.status());
    if (turn.moved) wire_->look_at_rate();
    if (received.ok() && sent.ok()) return turn;
  }
  // A reset: what the kernels still hold of puts that have ended is not to land later; answers may.
  if (const linger at_once{.l_onoff = 1, .l_linger = 0}; wire_->abandons())
    (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  const bool sends = !sender_.stop(), receives = !receiver_.stop();
  turn.watches = sends || receives;
  turn.over = !turn.watches;
  return turn;
}

}  // namespace linkspan::transport::tcp
