#include "copy/cma.hpp"

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>

namespace linkspan::copy {
namespace {

constexpr std::size_t kVectors = 64;  // per call
/// Time for which the pid of a process that was seen to live cannot be another's: the kernel gives
/// all other numbers before it gives one again.
constexpr Duration kPidKept = std::chrono::milliseconds(10);

void* pointer(std::uint64_t address) noexcept {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

std::string hex(std::uint64_t address) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(address));
  return text.data();
}

/// Returns an error if the process has ended: its pidfd is readable then (pidfd_open(2)).
Status alive(const OtherProcess& other) {
  pollfd poll_fd{.fd = other.pidfd, .events = POLLIN, .revents = 0};
  const int ready = ::poll(&poll_fd, 1, 0);
  if (ready == 0 || (ready < 0 && errno == EINTR)) return {};
  if (ready < 0 || (poll_fd.revents & POLLNVAL) != 0)
    return Status(Code::invalid_argument, Scope::peer, "not a pidfd");
  return Status(Code::disconnected, Scope::peer,
                "process " + std::to_string(other.pid) + " has ended");
}

/// Returns an error if the pid may be another process's now.
Status has_its_pid(const OtherProcess& other, base::Time now) {
  if (other.proof == nullptr) return alive(other);
  if (now - other.proof->alive.load() < kPidKept) return {};
  Status status = alive(other);
  if (status.ok()) other.proof->alive = now;
  return status;
}

Status failure(int error, const OtherProcess& other, bool read, const Piece& at) {
  const std::string process = "process " + std::to_string(other.pid);
  const std::string call = read ? "process_vm_readv" : "process_vm_writev";
  switch (error) {
    case EFAULT:
      return Status(Code::unreachable, Scope::request,
                    call + ": " + hex(read ? at.from : at.to) + " of " + process + " or " +
                        hex(read ? at.to : at.from) + " of ours is not mapped so");
    case ESRCH:
      return Status(Code::disconnected, Scope::peer, call + ": no " + process);
    case EPERM:
      return Status(Code::permission_denied, Scope::peer, call + ": not permitted to " + process);
    default:
      return Status(Code::system, Scope::request,
                    call + ": " + std::generic_category().message(error));
  }
}

/// Drops the pieces that are copied. `done`: bytes copied of all pieces; on return, of the first
/// piece left.
void drop_done(std::span<const Piece>& pieces, std::uint64_t& done) {
  while (!pieces.empty() && done >= pieces.front().bytes) {
    done -= pieces.front().bytes;
    pieces = pieces.subspan(1);
  }
}

/// Copies what one system call takes of the first pieces. Returns what the call returns; it stops
/// before a fault, or at 2 GiB.
ssize_t move_some(std::int64_t pid, bool read, std::span<const Piece> pieces, std::uint64_t done) {
  std::array<iovec, kVectors> ours, theirs;  // NOLINT(*-member-init): only `count` are read
  const std::size_t count = std::min(pieces.size(), kVectors);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t skip = i == 0 ? done : 0;
    const Piece& piece = pieces[i];
    const std::uint64_t bytes = piece.bytes - skip;
    ours[i] = {pointer((read ? piece.to : piece.from) + skip), bytes};
    theirs[i] = {pointer((read ? piece.from : piece.to) + skip), bytes};
  }
  const auto call = read ? ::process_vm_readv : ::process_vm_writev;
  return call(static_cast<pid_t>(pid), ours.data(), count, theirs.data(), count, 0);
}

/// Reads the proof back, once.
Status prove(const OtherProcess& other) {
  using enum ProcessProof::ProofState;
  if (other.proof == nullptr || other.proof->state == right) return {};
  std::array<std::byte, 16> read{};
  const Piece piece{.to = reinterpret_cast<std::uintptr_t>(read.data()),
                    .from = other.proof->address,
                    .bytes = read.size()};
  const ssize_t got = move_some(other.pid, true, {&piece, 1}, 0);
  if (got < 0 && errno != EFAULT) return failure(errno, other, true, piece);
  if (got == static_cast<ssize_t>(read.size()) && read == other.proof->bytes) {
    other.proof->state = right;
    return {};
  }
  other.proof->state = wrong;
  return {
      Code::permission_denied, Scope::peer,
      "process " + std::to_string(other.pid) + " is not the peer, which has that number no more"};
}

/// Copies the first bytes through memory of this function, for ends of which the kernel pins
/// neither: memory that a driver has mapped.
ssize_t move_by_bounce(std::int64_t pid, const Piece& piece, std::uint64_t done) {
  std::array<std::byte, 16384> between;  // NOLINT(*-member-init): only what has come is read
  const auto at = reinterpret_cast<std::uintptr_t>(between.data());
  const std::uint64_t bytes = std::min<std::uint64_t>(piece.bytes - done, between.size());
  const Piece in{.to = at, .from = piece.from + done, .bytes = bytes};
  const ssize_t got = move_some(pid, false, {&in, 1}, 0);
  if (got <= 0) return got;
  const Piece out{.to = piece.to + done, .from = at, .bytes = static_cast<std::uint64_t>(got)};
  return move_some(pid, true, {&out, 1}, 0);
}

Status not_usable(const Piece& at) {
  return {Code::unreachable, Scope::request,
          "memory at " + hex(at.to) + " cannot be written or memory at " + hex(at.from) +
              " cannot be read in the process that copies: it was freed, unmapped or truncated "
              "without Engine::deregister or Engine::invalidate, or is mapped without that right"};
}

}  // namespace

bool is_u64(const Piece& piece) noexcept { return piece.bytes == 8 && piece.to % 8 == 0; }

Status store_u64(std::uint64_t to, std::uint64_t value) {
  // An atomic addition of zero by the kernel, which wakes no more than a spurious waiter.
  std::uint32_t own = 0;
  const long asked = ::syscall(SYS_futex, &own, FUTEX_WAKE_OP_PRIVATE, 0, 0, pointer(to),
                               FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_LT, 0));
  if (asked < 0 && errno == EFAULT) return not_usable({.to = to, .from = to, .bytes = 8});
  std::atomic_ref(*static_cast<std::uint64_t*>(pointer(to)))
      .store(value, std::memory_order_release);
  return {};
}

Status copy_within(std::span<const Piece> pieces) {
  const std::int64_t self = ::getpid();
  std::uint64_t done = 0;  // of the first piece that is left
  for (drop_done(pieces, done); !pieces.empty(); drop_done(pieces, done)) {
    const Piece& first = pieces.front();
    std::uint64_t value = 0;
    const Piece to_value{reinterpret_cast<std::uintptr_t>(&value), first.from, first.bytes};
    const bool by_u64 = is_u64(first);
    const auto run = by_u64 ? std::span(&to_value, 1)
                            : pieces.first(static_cast<std::size_t>(
                                  std::ranges::find_if(pieces, is_u64) - pieces.begin()));
    ssize_t moved = move_some(self, true, run, done);
    // Memory that a driver has mapped is no source for the kernel, but may be a destination.
    if (moved <= 0 && errno != EINTR && !by_u64) moved = move_some(self, false, run, done);
    if (moved <= 0 && errno != EINTR) moved = move_by_bounce(self, run.front(), done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0 && (errno == ENOSYS || errno == EPERM)) {  // a sandbox allows no such call
      std::memcpy(pointer(run.front().to + done), pointer(run.front().from + done),
                  run.front().bytes - done);
      moved = static_cast<ssize_t>(run.front().bytes - done);
    }
    if (moved <= 0) return not_usable({first.to + done, first.from + done, first.bytes - done});
    if (by_u64 && moved == 8)
      if (Status status = store_u64(first.to, value); !status.ok()) return status;
    if (by_u64 && moved != 8) return not_usable(first);
    done += static_cast<std::uint64_t>(moved);
  }
  return {};
}

Status may_copy_across(std::int64_t pid) {
  // No process has memory there, so a call that is permitted ends with EFAULT.
  std::byte here{};
  const Piece nowhere{
      .to = reinterpret_cast<std::uintptr_t>(&here), .from = ~std::uint64_t{0} - 4095, .bytes = 1};
  if (move_some(pid, true, {&nowhere, 1}, 0) >= 0 || errno == EFAULT) return {};
  return failure(errno, {.pid = pid}, true, nowhere);
}

Status copy_across(const OtherProcess& other, bool read, std::span<const Piece> pieces) {
  const base::Clock& clock = base::Clock::steady();
  const base::Time begin = clock.now();
  if (other.prompt != nullptr) other.prompt->store(false);
  if (Status s = has_its_pid(other, begin); !s.ok()) return s;
  if (Status s = prove(other); !s.ok()) return s;
  std::uint64_t done = 0;  // of the first piece that is left
  for (;;) {
    drop_done(pieces, done);
    if (pieces.empty()) {
      const base::Time end = clock.now();
      if (other.prompt != nullptr) other.prompt->store(end - begin <= kPrompt);
      return has_its_pid(other, end);
    }
    const ssize_t moved = move_some(other.pid, read, pieces, done);
    if (moved < 0 && errno == EINTR) continue;
    // The call stops before a fault (or at 2 GiB). Called again there, it returns the reason.
    if (moved <= 0) {
      const int error = moved == 0 ? EFAULT : errno;
      if (Status s = alive(other); !s.ok()) return s;
      const Piece& at = pieces.front();
      return failure(error, other, read, {at.to + done, at.from + done, at.bytes - done});
    }
    done += static_cast<std::uint64_t>(moved);
  }
}

}  // namespace linkspan::copy
