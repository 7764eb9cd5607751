#include "tools/linkspan/pair/text_channel.hpp"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "base/untrusted_input.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kTextTag = 1;
constexpr Duration kReceiveDeadline = 24h * 7;  // limits the wait for a text
constexpr Duration kErrorTimeout = 2s, kCancelTimeout = 3s;
constexpr std::string_view kError = "error ";

base::Deadline after(Duration timeout) { return base::Deadline::in(timeout); }

Status timed_out(const char* what, Duration timeout) {
  return {Code::timed_out, Scope::peer,
          std::string("waited in vain for ") + what + ": nothing came for " +
              std::to_string(timeout / 1s) + " s (--timeout)"};
}

Status error_of(std::string_view text) {
  return {Code::canceled, Scope::peer,
          "the other side: " + base::printable(text.substr(kError.size()))};
}

bool is_pending(const Transfer& one) { return one.id() != 0 && !one.done(); }

}  // namespace

Result<std::unique_ptr<TextChannel>> TextChannel::begin(Peer peer, Duration timeout) {
  auto queue = CompletionQueue::create();
  if (!queue.ok()) return queue.status();
  std::unique_ptr<TextChannel> out(new TextChannel(std::move(peer), timeout, *std::move(queue)));
  if (Status s = out->post_receive(); !s.ok()) return s;
  return out;
}

TextChannel::~TextChannel() {
  if (buffers_ != nullptr && !cancel_pending(kCancelTimeout)) (void)buffers_.release();
}

Status TextChannel::post_receive() {
  auto received = peer_.recv(kTextTag, buffers_->received.data(), kMaxTextBytes,
                             {.deadline = kReceiveDeadline});
  if (!received.ok()) return received.status();
  receiving_ = *std::move(received);
  return queue_.add(receiving_, 0);
}

Status TextChannel::send(std::string_view text) {
  if (is_pending(sending_)) return timed_out("the other side to listen", step_timeout_);
  text = text.substr(0, kMaxTextBytes);
  std::copy(text.begin(), text.end(), buffers_->sent.begin());
  auto sent = peer_.send(kTextTag, buffers_->sent.data(), text.size(), {.deadline = step_timeout_});
  if (!sent.ok()) return sent.status();
  sending_ = *std::move(sent);
  if (Status s = queue_.add(sending_, 0); !s.ok()) return s;
  return wait_for_end(sending_, step_timeout_, "the other side to listen");
}

Result<std::string> TextChannel::receive(Duration more) {
  if (!receive_error_.ok()) return receive_error_;
  if (Status s = wait_for_end(receiving_, step_timeout_ + more, "an answer"); !s.ok()) return s;
  std::string text(buffers_->received.data(), receiving_.bytes());
  receive_error_ = post_receive();  // the text may have been the last one
  if (text.starts_with(kError)) return error_of(text);
  return text;
}

/// Returns the other side's error, if a received text that was not returned yet is one.
Status TextChannel::received_error() const {
  if (!receiving_.done() || !receiving_.status().ok()) return {};
  const std::string_view text(buffers_->received.data(), receiving_.bytes());
  return text.starts_with(kError) ? error_of(text) : Status();
}

void TextChannel::send_error(const Status& why) {
  if (is_pending(sending_)) return;
  const std::string text = std::string(kError) + why.what();
  const std::size_t bytes = std::min(text.size(), kMaxTextBytes);
  std::copy_n(text.begin(), bytes, buffers_->sent.begin());
  auto sent = peer_.send(kTextTag, buffers_->sent.data(), bytes, {.deadline = kErrorTimeout});
  if (!sent.ok()) return;
  sending_ = *std::move(sent);
  (void)sending_.wait(kErrorTimeout);
}

/// Sleeps until `one` is quiet, the other side sends an error, or `timeout` has passed.
Status TextChannel::wait_for_end(const Transfer& one, Duration timeout, const char* what) {
  const base::Deadline deadline = after(timeout);
  while (!one.done()) {
    if (Status s = received_error(); !s.ok()) return s;
    if (deadline.passed()) return timed_out(what, timeout);
    pollfd readable{.fd = queue_.fd(), .events = POLLIN, .revents = 0};
    (void)::poll(&readable, 1, deadline.left_ms());
    (void)queue_.take();
  }
  const Status end = one.status();
  if (end.ok()) return {};
  if (Status s = received_error(); !s.ok()) return s;
  if (end.code() == Code::timed_out) return timed_out(what, timeout);
  return {end.code(), Scope::peer, end.what()};
}

bool TextChannel::cancel_pending(Duration timeout) {
  const base::Deadline deadline = after(timeout);
  std::vector<Transfer> all{sending_, receiving_};
  std::erase_if(all, [](const Transfer& one) { return !is_pending(one); });
  for (const Transfer& one : all) (void)one.cancel();
  bool quiet = true;
  for (const Transfer& one : all) {
    (void)one.wait(deadline.left());
    quiet = quiet && one.done();
  }
  return quiet;
}

}  // namespace linkspan::tool
