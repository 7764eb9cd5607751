#include "net/acceptor.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

#include "net/descriptor_watch.hpp"

namespace linkspan::net {
namespace {

using asio::posix::stream_descriptor;

constexpr int kAcceptsPerPoll = 16;
/// Pause before accept is retried after a lack of resources, during which epoll would report the
/// socket again and again.
constexpr auto kPauseWithoutRoom = std::chrono::milliseconds(50);

bool is_full(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

Acceptor::Acceptor(asio::io_context& io, std::function<void(base::Fd)> accept,
                   const base::FdCloser* closer)
    : accept_(std::move(accept)), closer_(closer), listening_(io), pause_(io) {}

Status Acceptor::listen(base::Fd socket, std::string path) {
  stop();
  path_ = std::move(path);
  if (Status status = assign(listening_, std::move(socket)); !status.ok()) return status;
  accept_next();
  return {};
}

void Acceptor::stop() {
  try {
    pause_.cancel();
    if (listening_.is_open()) {
      // A forked child may have a copy of the socket, at which clients would wait for an accept.
      ::shutdown(listening_.native_handle(), SHUT_RDWR);
      // Closing it also closes connections that were not accepted, with the descriptors that others
      // have sent there.
      base::Fd ending(listening_.release());
      if (closer_ != nullptr) ending.close_by(closer_->sink());
    }
  } catch (const std::exception&) {
    // No memory for a sink: this thread has closed the socket.
  }
  remove_path();
}

void Acceptor::remove_path() noexcept {
  if (!path_.empty()) ::unlink(path_.c_str());
  path_.clear();
}

bool Acceptor::is_within_rate() {
  if (each_ == Duration::zero()) return true;
  const base::Time now = base::Clock::steady().now();
  if (spent_until_ + each_ > now + burst_) return false;
  spent_until_ = std::max(spent_until_, now) + each_;
  return true;
}

void Acceptor::accept_next() {
  waits_ = false;
  listening_.async_wait(stream_descriptor::wait_read, [this](const asio::error_code& error) {
    if (error) return;
    waits_ = false;
    for (int i = 0; i < kAcceptsPerPoll && listening_.is_open(); ++i) {
      if (closer_ != nullptr && closer_->full()) return accept_after(kPauseWithoutRoom);
      if (!is_within_rate()) return accept_after(kAcceptsPerPoll * each_);
      base::Fd socket(
          ::accept4(listening_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.valid()) {
        if (is_full(errno)) return accept_after(kPauseWithoutRoom);
        break;
      }
      if (closer_ != nullptr) socket.close_by(closer_->sink_of(socket.get()));
      try {
        accept_(std::move(socket));
      } catch (const std::exception&) {
        // No memory: this connection is closed, and the next ones are accepted.
      }
    }
    accept_next();
  });
  waits_ = true;
}

void Acceptor::accept_after(Duration pause) {
  pause_.expires_after(pause);
  pause_.async_wait([this](const asio::error_code& error) {
    if (!error && listening_.is_open()) accept_next();
  });
  waits_ = true;
}

}  // namespace linkspan::net
