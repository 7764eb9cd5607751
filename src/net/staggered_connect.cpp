#include "net/staggered_connect.hpp"

#include <poll.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/interrupt.hpp"

namespace linkspan::net {
namespace {

/// Manages the attempts to connect to the addresses of one host.
class Attempts {
 public:
  explicit Attempts(std::span<const TcpAddress> addresses) : left_(addresses) {}

  bool none() const noexcept { return pending_.empty(); }
  bool begun() const noexcept { return left_.empty(); }
  bool is_next_due() const noexcept { return !begun() && (none() || next_.passed()); }
  /// Returns the time until a timer requires an action.
  Duration wait_time() const noexcept { return begun() ? patience_.left() : next_.left(); }
  bool out_of_patience() const noexcept { return begun() && patience_.passed(); }

  void begin_next() {
    const TcpAddress& to = left_.front();
    left_ = left_.subspan(1);
    auto socket = begin_connect(to);
    if (!socket.ok()) return failed(socket.status());
    pending_.push_back({to, *std::move(socket)});
    next_ = base::Deadline::in(kConnectStagger);
    patience_ = base::Deadline::in(kConnectPatience);
  }

  /// Waits until an attempt has ended, or for `time`. Returns the connected socket, if any.
  base::Fd wait(Duration time) {
    std::vector<pollfd> polled;
    for (const Attempt& each : pending_)
      polled.push_back({.fd = each.socket.get(), .events = POLLOUT, .revents = 0});
    if (::poll(polled.data(), polled.size(), base::Deadline::in(time).left_ms()) <= 0) return {};
    for (std::size_t i = polled.size(); i-- > 0;) {
      if (polled[i].revents == 0) continue;
      Attempt ended = std::move(pending_[i]);
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      const Status status = connected(ended.socket, ended.to);
      if (status.ok()) return std::move(ended.socket);
      failed(status);
    }
    return {};
  }

  /// Returns the reason why no attempt has succeeded.
  Status failure(Code code_of_unanswered) const {
    std::string text = text_;
    for (const Attempt& each : pending_)
      text += (text.empty() ? "" : "; ") + ("connect to " + each.to.to_string()) + ": no answer";
    return {none() ? code_ : code_of_unanswered, Scope::peer, text};
  }

 private:
  struct Attempt {
    TcpAddress to;
    base::Fd socket;
  };

  void failed(const Status& why) {
    // An error about ::1, to which "localhost" may resolve on a host without IPv6, is not the
    // result.
    if (text_.empty() || code_ == Code::system) code_ = why.code();
    text_ += (text_.empty() ? "" : "; ") + why.what();
    next_ = base::Deadline::in(Duration::zero());
  }

  std::span<const TcpAddress> left_;
  std::vector<Attempt> pending_;
  base::Deadline next_ = base::Deadline::in(Duration::zero()),
                 patience_ = base::Deadline::in(kConnectPatience);
  Code code_ = Code::unreachable;
  std::string text_;
};

}  // namespace

Result<base::Fd> connect_to(std::span<const TcpAddress> addresses, base::Deadline deadline) {
  Attempts attempts(addresses);
  for (;;) {
    if (attempts.is_next_due()) attempts.begin_next();
    if (attempts.is_next_due()) continue;
    if (attempts.none()) return attempts.failure(Code::unreachable);
    const Duration time = std::min(attempts.wait_time(), deadline.left());
    if (base::Fd socket = attempts.wait(base::until_poll(time)); socket.valid()) return socket;
    if (attempts.none()) continue;  // a refusal is reported even at the deadline
    if (InterruptCheck::poll()) return base::interrupted();
    if (deadline.passed()) return attempts.failure(Code::timed_out);
    if (attempts.out_of_patience()) return attempts.failure(Code::unreachable);
  }
}

}  // namespace linkspan::net
