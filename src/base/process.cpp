#include "base/process.hpp"

#include <pthread.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <string_view>

namespace linkspan::base {
namespace {

/// Returns the start of a small file; empty if it cannot be read.
std::string_view read_small(const char* path, std::span<char> into) {
  const Fd file(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return {};
  const ssize_t got = ::read(file.get(), into.data(), into.size());
  return {into.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
}

std::array<std::byte, 16> read_boot_id() {
  std::array<char, 64> buffer{};
  std::array<std::byte, 16> id{};
  std::size_t digits = 0;
  for (char c : read_small("/proc/sys/kernel/random/boot_id", buffer)) {
    unsigned value = 0;
    if (std::from_chars(&c, &c + 1, value, 16).ec != std::errc()) continue;  // a dash
    if (digits == 32) break;
    id[digits / 2] |= static_cast<std::byte>(digits % 2 == 0 ? value << 4 : value);
    ++digits;
  }
  return id;
}

std::uint64_t read_start_time() {
  std::array<char, 1024> buffer{};
  std::string_view stat = read_small("/proc/self/stat", buffer);
  const std::size_t name_end = stat.rfind(')');  // the name may hold spaces and brackets
  if (name_end == std::string_view::npos) return 0;
  stat.remove_prefix(name_end + 1);
  for (int field = 3; field <= 22; ++field) {  // " S 1 2 ...": a space precedes each field
    const std::size_t space = stat.find(' ');
    if (space == std::string_view::npos) return 0;
    stat.remove_prefix(space + 1);
  }
  std::uint64_t ticks = 0;
  std::from_chars(stat.data(), stat.data() + stat.size(), ticks);
  return ticks;
}

// An atomic, not a mutex, because fork() may happen while another thread holds the mutex. 0: not
// drawn yet.
std::atomic<std::uint64_t> process_nonce{0};

std::uint64_t nonce_of_this_process() {
  static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { process_nonce.store(0, std::memory_order_relaxed); });
  (void)registered;
  std::uint64_t nonce = process_nonce.load();
  if (nonce != 0) return nonce;
  const std::uint64_t drawn = random_u64();
  return process_nonce.compare_exchange_strong(nonce, drawn) ? drawn : nonce;
}

}  // namespace

ProcessIdentity this_process() {
  return {read_boot_id(), read_start_time(), nonce_of_this_process()};
}

bool is_unix_socket(int fd) noexcept {
  int domain = AF_UNSPEC;
  socklen_t bytes = sizeof domain;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_UNIX;
}

Result<PeerCredentials> peer_credentials(int fd) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
    return Fd::from("getsockopt(SO_PEERCRED)", -1).status();
  return PeerCredentials{peer.pid, peer.uid, peer.gid};
}

Result<Fd> open_pidfd(pid_t pid) {
  const auto raw = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (raw < 0 && errno == ESRCH)
    return Status(Code::not_found, Scope::peer, "no process " + std::to_string(pid));
  return Fd::from("pidfd_open", raw);
}

bool is_pidfd(int fd) noexcept {
  siginfo_t end{};
  constexpr int kPeek = WEXITED | WNOHANG | WNOWAIT;
  // EBADF: another kind of file. ECHILD: a process that is not our child. EINVAL: an old kernel.
  return ::waitid(P_PIDFD, static_cast<id_t>(fd), &end, kPeek) == 0 || errno != EBADF;
}

bool names_one_user(uid_t uid) {
  std::array<char, 256> buffer{};
  uid_t overflow = 65534;
  const std::string_view shown = read_small("/proc/sys/kernel/overflowuid", buffer);
  std::from_chars(shown.data(), shown.data() + shown.size(), overflow);
  if (uid != overflow) return true;
  // Each range is "inside outside count". All numbers are this process's if one range has them all.
  return read_small("/proc/self/uid_map", buffer).find(" 4294967295\n") != std::string_view::npos;
}

Result<std::pair<Fd, Fd>> socket_pair() {
  int raw[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, raw) != 0)
    return Fd::from("socketpair", -1).status();
  return std::pair(Fd(raw[0]), Fd(raw[1]));
}

Status random_bytes(std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t got = ::getrandom(into.data(), into.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Fd::from("getrandom", -1).status();
    into = into.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

std::uint64_t random_u64() noexcept {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    number = static_cast<std::uint64_t>(now) ^ static_cast<std::uint64_t>(::getpid()) << 40;
  }
  return std::max<std::uint64_t>(number, 1);
}

}  // namespace linkspan::base
