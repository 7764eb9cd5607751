// tests/support/tcp_pair.hpp - two ends of a TCP connection over loopback.
//
// Threads: any thread.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <utility>

#include "net/tcp_socket.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {

inline std::pair<base::Fd, base::Fd> tcp_pair() {
  const auto listening = take(net::listen_at(take(net::resolve("127.0.0.1", 0)).front()));
  auto one =
      take(net::connect_to(take(net::address_of(listening)),
                           base::Deadline::after(base::Clock::steady(), std::chrono::seconds(10))));
  // The kernel may queue the connection a moment after connect() has returned.
  pollfd queued{.fd = listening.get(), .events = POLLIN, .revents = 0};
  (void)::poll(&queued, 1, 10'000);
  auto other = take(base::Fd::from(
      "accept", ::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
  net::prepare(one);
  net::prepare(other);
  return {std::move(one), std::move(other)};
}

}  // namespace linkspan::test
