// tests/support/raw_message.hpp - bytes, and fds with the first of them, as a hostile peer would
// send them.
//
// Threads: any thread.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "base/fd.hpp"

namespace linkspan::test {

/// Answers like sendmsg(2).
inline ssize_t send_message(int socket, std::span<const std::byte> bytes,
                            std::span<const base::Fd> fds) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  std::vector<std::byte> control(CMSG_SPACE(fds.size() * sizeof(int)));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    for (std::size_t i = 0; i < fds.size(); ++i) {
      const int raw = fds[i].get();
      std::memcpy(CMSG_DATA(rights) + i * sizeof raw, &raw, sizeof raw);
    }
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace linkspan::test
