// base/fd.hpp - owns one file descriptor: socket, eventfd, memfd, pidfd, exported GPU memory.
//
// A descriptor is in an Fd from the system call that made it until its close; a bare int is a
// loan for one call. All are made close-on-exec (SOCK_CLOEXEC, MFD_CLOEXEC, MSG_CMSG_CLOEXEC):
// a program that the user starts must not hold a peer's socket open, or the end-of-file that
// tells of our death never comes (docs/threading.md, "death of a peer").
// A descriptor that came from another process has a sink (base/fd_closer.hpp): its close may wait
// for that process, so another thread closes it.
// Threads: externally synchronised.
// Invariants: no two Fds hold the same number; what one holds is open and is closed once.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "linkspan/status.hpp"

namespace linkspan::base {

/// Closes the descriptors of one other process.
class FdSink {
 public:
  /// Owns `raw` from now on. Never waits.
  virtual void close(int raw) noexcept = 0;
  /// Whether more of that process must be refused: too many of its descriptors are not closed yet.
  virtual bool full() const noexcept = 0;

 protected:
  ~FdSink() = default;
};

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

  Fd(Fd&& other) noexcept
      : raw_(std::exchange(other.raw_, -1)), sink_(std::exchange(other.sink_, nullptr)) {}
  /// Closes the old one now, not when `other` ends: a close is a message to the far side.
  Fd& operator=(Fd&& other) noexcept {
    Fd old(std::move(other));
    std::swap(raw_, old.raw_);
    std::swap(sink_, old.sink_);
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  /// A close that EINTR cut short is not repeated: Linux has freed the number by then (close(2)),
  /// and it may already be another thread's.
  ~Fd() {
    if (raw_ < 0) return;
    if (sink_ != nullptr)
      sink_->close(raw_);
    else
      ::close(raw_);
  }

  bool valid() const noexcept { return raw_ >= 0; }
  int get() const noexcept { return raw_; }  ///< Still ours.
  /// The caller's now, who closes it as well.
  [[nodiscard]] int release() noexcept {
    sink_.reset();
    return std::exchange(raw_, -1);
  }

  /// Has `sink` close it, in the place of the thread that ends this Fd.
  void close_by(std::shared_ptr<FdSink> sink) noexcept { sink_ = std::move(sink); }
  /// Shared with the Fds of what the same process sends. Null: this process made it.
  const std::shared_ptr<FdSink>& sink() const noexcept { return sink_; }
  /// Its kind has been shown: to close it waits for nothing.
  void trust() noexcept { sink_.reset(); }

  /// A second descriptor of the same open file, with which it shares offset and status flags.
  Result<Fd> duplicate() const {
    auto second = from("fcntl(F_DUPFD_CLOEXEC)", ::fcntl(raw_, F_DUPFD_CLOEXEC, 0));
    if (second.ok()) second->close_by(sink_);
    return second;
  }

 private:
  int raw_ = -1;
  std::shared_ptr<FdSink> sink_;  // also of the other descriptors of that process
};

}  // namespace linkspan::base
