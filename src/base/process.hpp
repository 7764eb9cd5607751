// base/process.hpp - the identity of this process and of the process at the other end of a socket,
// and kernel services: random bytes, pidfds, socket pairs.
//
// An identity is never a pid alone: pids are reused and differ between namespaces.
// Threads: any thread. Nothing here is on the path of a byte.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/fd.hpp"
#include "linkspan/status.hpp"

namespace linkspan::base {

struct ProcessIdentity {
  std::array<std::byte, 16> boot_id{};  ///< One per boot of the host.
  std::uint64_t start_time = 0;         ///< Clock ticks after boot, /proc/self/stat field 22.
  std::uint64_t nonce = 0;              ///< Random, one per process; a forked child has its own.
  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};
/// Returns the identity of this process. Without /proc, boot_id and start_time are zero and only
/// the nonce distinguishes processes.
ProcessIdentity this_process();

struct PeerCredentials {
  pid_t pid = 0;  ///< 0: in an invisible pid namespace.
  uid_t uid = 0;
  gid_t gid = 0;
};
/// Returns true for a Unix socket, which shows the process at its other end and carries fds.
bool is_unix_socket(int fd) noexcept;

/// Returns the credentials of the process that called connect, listen or socketpair, as of that
/// call (SO_PEERCRED).
Result<PeerCredentials> peer_credentials(int fd);

/// Opens a pidfd, which becomes readable when the process ends. Compare identities afterwards:
/// until then the pid may be reused. not_found: there is no such process.
Result<Fd> open_pidfd(pid_t pid);

/// Returns true if `fd` is a pidfd of any process, also of one in an invisible namespace. Returns
/// true on kernels before 5.4, which cannot tell.
bool is_pidfd(int fd) noexcept;

/// Returns false if `uid` is the overflow uid, which the kernel shows for each user that our user
/// namespace does not map; two such users may differ.
bool names_one_user(uid_t uid);

/// Returns two connected Unix stream sockets, close-on-exec.
Result<std::pair<Fd, Fd>> socket_pair();

/// Fills `into` by getrandom(2); fit for keys and nonces.
Status random_bytes(std::span<std::byte> into);
/// Returns a random number for identities, never 0. If getrandom fails it is derived from time and
/// pid, so it is not secret.
std::uint64_t random_u64() noexcept;

}  // namespace linkspan::base
