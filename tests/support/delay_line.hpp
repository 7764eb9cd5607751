// tests/support/delay_line.hpp - delays TCP connections: a thread accepts them, connects to the
// target, and keeps bytes for a while.
//
// This simulates distance, for which this kernel has no model (netem).
// Threads: any thread; its own thread does the work and is joined by the destructor. That thread
// calls `tap` with the bytes from either side, which it may change.
// Invariants: it keeps kMax bytes at most of each connection and direction, then reads no more.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <thread>

#include "base/fd.hpp"
#include "net/tcp_socket.hpp"

namespace linkspan::test {

class DelayLine {
 public:
  static constexpr std::size_t kMax = 256u << 10;
  using Tap = std::function<void(std::span<char>)>;

  /// Starts it on the host of the calling thread, with its sockets and its thread.
  static Result<std::unique_ptr<DelayLine>> start(const net::TcpAddress& at,
                                                  const net::TcpAddress& to, Duration delay,
                                                  Tap tap = {});
  DelayLine(const DelayLine&) = delete;
  DelayLine& operator=(const DelayLine&) = delete;
  ~DelayLine();

  const net::TcpAddress& address() const noexcept { return address_; }
  /// Stalls the present connections, whose ends receive nothing from each other any more; later
  /// connections work. Simulates a proxy that has lost them.
  void freeze();

 private:
  DelayLine(base::Fd listening, base::Fd bell, const net::TcpAddress& address,
            const net::TcpAddress& to, Duration delay, Tap tap)
      : listening_(std::move(listening)),
        bell_(std::move(bell)),
        address_(address),
        to_(to),
        delay_(delay),
        tap_(std::move(tap)) {}
  void ring() const;
  void run(const std::stop_token& stop);

  const base::Fd listening_, bell_;
  const net::TcpAddress address_, to_;
  const Duration delay_;
  std::atomic<bool> freezes_{false};
  const Tap tap_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace linkspan::test
