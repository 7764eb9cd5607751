// tests/support/lingering_socket.hpp - a TCP socket whose close(2) blocks: it has SO_LINGER
// and bytes that its other end does not read.
//
// Threads: externally synchronised.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <stdexcept>

#include "base/fd.hpp"

namespace linkspan::test {

class LingeringSocket {
 public:
  static constexpr int kSeconds = 30;

  LingeringSocket() {
    const base::Fd listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    socket = base::Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof at;
    auto* const raw = reinterpret_cast<sockaddr*>(&at);
    const int few = 4096;
    (void)::setsockopt(listening.get(), SOL_SOCKET, SO_RCVBUF, &few, sizeof few);
    if (::bind(listening.get(), raw, bytes) != 0 || ::listen(listening.get(), 1) != 0 ||
        ::getsockname(listening.get(), raw, &bytes) != 0 ||
        ::connect(socket.get(), raw, bytes) != 0)
      throw std::runtime_error("no TCP connection");
    other_end_ = base::Fd(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::array<char, 65536> data{};
    while (::send(socket.get(), data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
    const linger wait{.l_onoff = 1, .l_linger = kSeconds};
    if (::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &wait, sizeof wait) != 0)
      throw std::runtime_error("SO_LINGER");
  }
  ~LingeringSocket() {
    end();
    if (!socket.valid()) return;
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  LingeringSocket(const LingeringSocket&) = delete;
  LingeringSocket& operator=(const LingeringSocket&) = delete;

  /// Lets a blocked close return.
  void end() {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    (void)::setsockopt(other_end_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    other_end_ = base::Fd();
  }

  base::Fd socket;  ///< To give away: while another process has it too, its end here is no close.

 private:
  base::Fd other_end_;
};

}  // namespace linkspan::test
