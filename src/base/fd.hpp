// base/fd.hpp - owns one file descriptor: socket, eventfd, memfd, pidfd, exported GPU memory.
//
// An Fd owns a descriptor from the system call that created it until its close; a bare int is
// borrowed for one call. All are close-on-exec (SOCK_CLOEXEC, MFD_CLOEXEC, MSG_CMSG_CLOEXEC): a
// program that the user starts must not keep a peer's socket open, or the peer never sees the
// end-of-file of our death (docs/threading.md, "death of a peer").
// A descriptor that came from another process has a sink (base/fd_closer.hpp): its close may block
// on that process, so another thread closes it.
// Threads: externally synchronised.
// Invariants: no two Fds own the same number; an owned descriptor is open and is closed once.
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
  /// Takes ownership of `raw`. Never blocks.
  virtual void close(int raw) noexcept = 0;
  /// Returns true if too many descriptors of that process are not closed yet; refuse more of them.
  virtual bool full() const noexcept = 0;

 protected:
  ~FdSink() = default;
};

class Fd {
 public:
  Fd() noexcept = default;  // empty
  explicit Fd(int raw) noexcept : raw_(raw) {}

  /// Owns the result of a system call, or returns its error. Must be the first to read errno:
  ///   Result<Fd> wake = Fd::from("eventfd", ::eventfd(0, EFD_CLOEXEC));
  static Result<Fd> from(const char* call, int raw, Where at = {}) {
    if (raw >= 0) return Fd(raw);
    const std::string why = std::generic_category().message(errno);
    return Status(Code::system, Scope::request, std::string(call) + ": " + why, at);
  }

  Fd(Fd&& other) noexcept
      : raw_(std::exchange(other.raw_, -1)), sink_(std::exchange(other.sink_, nullptr)) {}
  /// Closes the old descriptor now, not when `other` ends: the other side waits for the close.
  Fd& operator=(Fd&& other) noexcept {
    Fd old(std::move(other));
    std::swap(raw_, old.raw_);
    std::swap(sink_, old.sink_);
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  /// Does not repeat a close that EINTR interrupted: Linux has freed the number (close(2)), and
  /// another thread may own it already.
  ~Fd() {
    if (raw_ < 0) return;
    if (sink_ != nullptr)
      sink_->close(raw_);
    else
      ::close(raw_);
  }

  bool valid() const noexcept { return raw_ >= 0; }
  int get() const noexcept { return raw_; }  ///< Borrowed.
  /// Passes ownership to the caller, which closes the descriptor.
  [[nodiscard]] int release() noexcept {
    sink_.reset();
    return std::exchange(raw_, -1);
  }

  /// Makes `sink` close the descriptor instead of the destroying thread.
  void close_by(std::shared_ptr<FdSink> sink) noexcept { sink_ = std::move(sink); }
  /// Returns the sink, shared by all Fds from one process. Null: this process created the
  /// descriptor.
  const std::shared_ptr<FdSink>& sink() const noexcept { return sink_; }
  /// Drops the sink: the kind of the descriptor was verified, and its close cannot block.
  void trust() noexcept { sink_.reset(); }

  /// Returns a second descriptor of the same open file. Both share offset and status flags.
  Result<Fd> duplicate() const {
    auto second = from("fcntl(F_DUPFD_CLOEXEC)", ::fcntl(raw_, F_DUPFD_CLOEXEC, 0));
    if (second.ok()) second->close_by(sink_);
    return second;
  }

 private:
  int raw_ = -1;
  std::shared_ptr<FdSink> sink_;  // shared by all descriptors of that process
};

}  // namespace linkspan::base
