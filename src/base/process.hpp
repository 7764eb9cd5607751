// base/process.hpp - which process this is, which one is at the other end of a socket, and what
// only the kernel can give: random bytes, pidfds, socket pairs.
//
// Identity is never a pid alone: numbers are used again and differ between namespaces.
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
  std::array<std::byte, 16> boot_id{};  ///< The kernel's life: one per boot of the host.
  std::uint64_t start_time = 0;         ///< Clock ticks after boot, /proc/self/stat field 22.
  std::uint64_t nonce = 0;              ///< Random, one per process; a forked child has its own.
  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};
/// Without /proc boot_id and start_time are zero, and the nonce alone tells processes apart.
ProcessIdentity this_process();

struct PeerCredentials {
  pid_t pid = 0;  ///< 0: in a pid namespace that we cannot see.
  uid_t uid = 0;
  gid_t gid = 0;
};
/// Whether it is a Unix socket, which tells of the process at its other end and carries fds.
bool is_unix_socket(int fd) noexcept;

/// Of the process that connected or listened, or called socketpair, at that time (SO_PEERCRED).
Result<PeerCredentials> peer_credentials(int fd);

/// Becomes readable when the process ends. Compare identities after it: until it is open the
/// number may become another process's. not_found: there is none.
Result<Fd> open_pidfd(pid_t pid);

/// Whether `fd` is a pidfd, of whatever process, also of one that we cannot see. A kernel that
/// cannot tell (before 5.4) says yes.
bool is_pidfd(int fd) noexcept;

/// False: `uid` is what the kernel shows for every user that our user namespace has no number for,
/// so two that have it may be different ones.
bool names_one_user(uid_t uid);

/// Two connected Unix stream sockets, close-on-exec.
Result<std::pair<Fd, Fd>> socket_pair();

/// getrandom(2): fit for keys and nonces that protect something.
Status random_bytes(std::span<std::byte> into);
/// For identities. Never 0. Where getrandom fails it is made of time and pid, hence no secret.
std::uint64_t random_u64() noexcept;

}  // namespace linkspan::base
