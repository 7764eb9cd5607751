#include "copy/cma.hpp"

#include <poll.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

namespace linkspan::copy {
namespace {

constexpr std::size_t kVectors = 16;  // a call

void* pointer(std::uint64_t address) noexcept {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

std::string hex(std::uint64_t address) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(address));
  return text.data();
}

/// A pidfd becomes readable when its process ends (pidfd_open(2)).
Status alive(const OtherProcess& other) {
  pollfd look{.fd = other.pidfd, .events = POLLIN, .revents = 0};
  const int ready = ::poll(&look, 1, 0);
  if (ready == 0 || (ready < 0 && errno == EINTR)) return {};
  if (ready < 0 || (look.revents & POLLNVAL) != 0)
    return Status(Code::invalid_argument, Scope::peer, "not a pidfd");
  return Status(Code::disconnected, Scope::peer,
                "process " + std::to_string(other.pid) + " has ended");
}

Status failure(int error, const OtherProcess& other, bool read, const Piece& at) {
  const std::string who = "process " + std::to_string(other.pid);
  const std::string call = read ? "process_vm_readv" : "process_vm_writev";
  switch (error) {
    case EFAULT:
      return Status(Code::unreachable, Scope::request,
                    call + ": " + hex(read ? at.from : at.to) + " of " + who + " or " +
                        hex(read ? at.to : at.from) + " of ours is not mapped so");
    case ESRCH:
      return Status(Code::disconnected, Scope::peer, call + ": no " + who);
    case EPERM:
      return Status(Code::permission_denied, Scope::peer, call + ": not permitted to " + who);
    default:
      return Status(Code::system, Scope::request,
                    call + ": " + std::generic_category().message(error));
  }
}

}  // namespace

Status copy_across(const OtherProcess& other, bool read, std::span<const Piece> pieces) {
  if (Status s = alive(other); !s.ok()) return s;
  std::array<iovec, kVectors> ours{}, theirs{};
  std::uint64_t done = 0;  // of the first piece that is left
  for (;;) {
    while (!pieces.empty() && done >= pieces.front().bytes) {
      done -= pieces.front().bytes;
      pieces = pieces.subspan(1);
    }
    if (pieces.empty()) return alive(other);  // the number was its own all the while
    const std::size_t count = std::min(pieces.size(), kVectors);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t skip = i == 0 ? done : 0;
      const Piece& piece = pieces[i];
      const std::uint64_t bytes = piece.bytes - skip;
      ours[i] = {pointer((read ? piece.to : piece.from) + skip), bytes};
      theirs[i] = {pointer((read ? piece.from : piece.to) + skip), bytes};
    }
    const auto call = read ? ::process_vm_readv : ::process_vm_writev;
    const ssize_t moved =
        call(static_cast<pid_t>(other.pid), ours.data(), count, theirs.data(), count, 0);
    if (moved < 0 && errno == EINTR) continue;
    // It stops short of a fault (or of 2 GiB); called again there, it says why.
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
