#include "tests/support/delay_line.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <list>
#include <optional>
#include <utility>
#include <vector>

namespace linkspan::test {
namespace {

using namespace std::chrono_literals;

bool later(ssize_t moved) { return moved < 0 && (errno == EAGAIN || errno == EINTR); }

/// Carries one direction of a connection.
class Pipe {
 public:
  Pipe(const base::Fd& from, const base::Fd& to, Duration delay, const DelayLine::Tap& tap)
      : from_(from.get()), to_(to.get()), delay_(delay), tap_(tap) {}

  bool over() const { return ended_ && held_.empty(); }
  short wants(base::Time now, bool reads) const {
    if (reads) return !ended_ && bytes_ < DelayLine::kMax ? POLLIN : 0;
    return !held_.empty() && held_.front().due <= now ? POLLOUT : 0;
  }
  std::optional<base::Time> due() const {
    return held_.empty() ? std::nullopt : std::optional(held_.front().due);
  }
  /// Returns false if an end of it is broken.
  bool turn(base::Time now) {
    while (!ended_ && bytes_ < DelayLine::kMax) {
      std::array<char, 16384> some{};
      const ssize_t got =
          ::recv(from_, some.data(), std::min(some.size(), DelayLine::kMax - bytes_), MSG_DONTWAIT);
      if (later(got)) break;
      if (got < 0) return false;
      ended_ = got == 0;
      if (ended_) break;
      if (tap_) tap_(std::span(some).first(static_cast<std::size_t>(got)));
      bytes_ += static_cast<std::size_t>(got);
      held_.push_back({now + delay_, {some.data(), some.data() + got}});
    }
    while (!held_.empty() && held_.front().due <= now) {
      const auto& first = held_.front().bytes;
      const ssize_t sent =
          ::send(to_, first.data() + gone_, first.size() - gone_, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (later(sent)) break;
      if (sent < 0) return false;
      gone_ += static_cast<std::size_t>(sent);
      bytes_ -= static_cast<std::size_t>(sent);
      if (gone_ != first.size()) continue;
      held_.pop_front();
      gone_ = 0;
    }
    if (over() && !std::exchange(shut_, true)) ::shutdown(to_, SHUT_WR);
    return true;
  }

 private:
  struct Held {
    base::Time due;
    std::vector<char> bytes;
  };
  const int from_, to_;
  const Duration delay_;
  const DelayLine::Tap& tap_;
  std::deque<Held> held_;
  std::size_t bytes_ = 0, gone_ = 0;  // held; of the first, sent
  bool ended_ = false, shut_ = false;
};

struct Connection {
  Connection(base::Fd one, base::Fd other, Duration delay, const DelayLine::Tap& tap)
      : a(std::move(one)), b(std::move(other)), there(a, b, delay, tap), back(b, a, delay, tap) {}
  base::Fd a, b;
  Pipe there, back;
  bool frozen = false;
};

}  // namespace

Result<std::unique_ptr<DelayLine>> DelayLine::start(const net::TcpAddress& at,
                                                    const net::TcpAddress& to, Duration delay,
                                                    Tap tap) {
  auto listening = net::listen_at(at);
  if (!listening.ok()) return listening.status();
  auto address = net::address_of(*listening);
  if (!address.ok()) return address.status();
  auto bell = base::Fd::from("eventfd", ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell.ok()) return bell.status();
  std::unique_ptr<DelayLine> made(
      new DelayLine(*std::move(listening), *std::move(bell), *address, to, delay, std::move(tap)));
  made->thread_ = std::jthread([self = made.get()](const std::stop_token& s) { self->run(s); });
  return made;
}

DelayLine::~DelayLine() {
  thread_.request_stop();
  ring();
}

void DelayLine::ring() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto rung = ::write(bell_.get(), &one, sizeof one);
}

void DelayLine::freeze() {
  freezes_ = true;
  ring();
  freezes_.wait(true);
}

void DelayLine::run(const std::stop_token& stop) {
  const base::Clock& clock = base::Clock::steady();
  std::list<Connection> connections;
  while (!stop.stop_requested()) {
    std::vector<pollfd> ends = {{.fd = bell_.get(), .events = POLLIN, .revents = 0},
                                {.fd = listening_.get(), .events = POLLIN, .revents = 0}};
    base::Time now = clock.now(), next = now + 1s;
    for (const Connection& each : connections) {
      if (each.frozen) continue;
      const auto wants = [&](const Pipe& in, const Pipe& out) {
        return static_cast<short>(in.wants(now, true) | out.wants(now, false));
      };
      // poll() would report the hang-up of an end without events again and again.
      if (const short events = wants(each.there, each.back); events != 0)
        ends.push_back({.fd = each.a.get(), .events = events, .revents = 0});
      if (const short events = wants(each.back, each.there); events != 0)
        ends.push_back({.fd = each.b.get(), .events = events, .revents = 0});
      for (const Pipe* pipe : {&each.there, &each.back})
        if (const auto due = pipe->due(); due && *due > now) next = std::min(next, *due);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - now);
    ::poll(ends.data(), ends.size(), static_cast<int>(left.count()));
    if (freezes_) {
      std::uint64_t rings = 0;
      [[maybe_unused]] const auto heard = ::read(bell_.get(), &rings, sizeof rings);
      for (Connection& each : connections) each.frozen = true;
      freezes_ = false;
      freezes_.notify_all();
    }
    base::Fd came(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (came.valid()) {
      net::prepare(came);
      auto on = net::connect_to(to_, base::Deadline::after(clock, 5s));
      if (on.ok()) connections.emplace_back(std::move(came), *std::move(on), delay_, tap_);
    }
    now = clock.now();
    std::erase_if(connections, [now](Connection& each) {
      if (each.frozen) return false;
      return !each.there.turn(now) || !each.back.turn(now) ||
             (each.there.over() && each.back.over());
    });
  }
}

}  // namespace linkspan::test
