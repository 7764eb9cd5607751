#include "transport/tcp/data_connection.hpp"

#include "transport/tcp/data_connection_thread.hpp"

namespace linkspan::transport::tcp {

void DataConnection::send_now() {
  // The thread finds an error as well.
  if (const auto sent = sender_.send_now(); !sent.ok() || !*sent) wake();
}

void DataConnection::wake() { thread_.wake(); }

DataConnection::PollResult DataConnection::poll(bool woken) {
  PollResult result;
  if (reset_) group_->fail(Status(Code::disconnected, Scope::peer, "a data connection was reset"));
  if (!group_->has_failed()) {
    if (const auto revocations = group_->revocations(); revocations != seen_revocations_) {
      seen_revocations_ = revocations;
      receiver_.release_revoked();
      sender_.release_revoked();
    }
    std::vector<Answer> answers;
    const bool full = sender_.is_full();
    auto received = full ? false : receiver_.poll(readable_, answers);
    for (const Answer& each : answers) sender_.answer(encode(each.head), each.waits);
    auto sent = Result<bool>(false);
    if (sends_ || woken || !answers.empty()) {
      sent = sender_.poll();
      result.needs_polling = sender_.needs_polling();
      sends_ = result.needs_polling || (sent.ok() && *sent);
    }
    result.moved = (received.ok() && *received) || (sent.ok() && *sent) || !answers.empty();
    // Another thread may have emptied the queue; no event reports what has arrived meanwhile.
    result.moved |= full && !sender_.is_full();
    result.needs_polling |= receiver_.needs_polling();
    if (!received.ok()) group_->fail(received.status());
    if (!sent.ok()) group_->fail(sent.status());
    if (result.moved) group_->check_rate();
    if (received.ok() && sent.ok()) return result;
  }
  // Resets the connection: data of ended puts that the kernels still hold must not land later. Data
  // of answers may.
  if (group_->abandons()) socket_.reset_on_close();
  const bool sends = !sender_.stop(), receives = !receiver_.stop();
  result.needs_polling = sends || receives;
  result.over = !result.needs_polling;
  return result;
}

}  // namespace linkspan::transport::tcp
