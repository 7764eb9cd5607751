// base/fd.hpp - owns one file descriptor: socket, eventfd, memfd, pidfd, exported GPU memory.
//
// A descriptor is in an Fd from the system call that made it until its close; a bare int is a
// loan for one call. All are made close-on-exec (SOCK_CLOEXEC, MFD_CLOEXEC, MSG_CMSG_CLOEXEC):
// a program that the user starts must not hold a peer's socket open, or the end-of-file that
// tells of our death never comes (docs/threading.md, "death of a peer").
// Threads: externally synchronised.
// Invariants: no two Fds hold the same number; what one holds is open and is closed once.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "linkspan/status.hpp"

namespace linkspan::base {

class Fd {
 public:
  Fd() noexcept = default;  // holds none
  explicit Fd(int raw) noexcept : raw_(raw) {}

  /// Owns what a system call returned, or says why it failed. To be the first to look at errno:
  ///   Result<Fd> wake = Fd::from("eventfd", ::eventfd(0, EFD_CLOEXEC));
  static Result<Fd> from(const char* call, int raw, Where at = {}) {
    if (raw >= 0) return Fd(raw);
    const std::string why = std::generic_category().message(errno);
    return Status(Code::system, Scope::request, std::string(call) + ": " + why, at);
  }

  Fd(Fd&& other) noexcept : raw_(std::exchange(other.raw_, -1)) {}
  /// Closes the old one now, not when `other` ends: a close is a message to the far side.
  Fd& operator=(Fd&& other) noexcept {
    const Fd old(std::exchange(raw_, std::exchange(other.raw_, -1)));
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  /// A close that EINTR cut short is not repeated: Linux has freed the number by then (close(2)),
  /// and it may already be another thread's.
  ~Fd() {
    if (raw_ >= 0) ::close(raw_);
  }

  bool valid() const noexcept { return raw_ >= 0; }
  int get() const noexcept { return raw_; }                                 ///< Still ours.
  [[nodiscard]] int release() noexcept { return std::exchange(raw_, -1); }  ///< The caller's now.

  /// A second descriptor of the same open file, with which it shares offset and status flags.
  Result<Fd> duplicate() const {
    return from("fcntl(F_DUPFD_CLOEXEC)", ::fcntl(raw_, F_DUPFD_CLOEXEC, 0));
  }

 private:
  int raw_ = -1;
};

}  // namespace linkspan::base
