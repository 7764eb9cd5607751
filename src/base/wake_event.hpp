// base/wake_event.hpp - an eventfd by which one thread wakes another that waits in poll(2) or
// epoll(7).
//
// Off the path of a byte.
// Threads: wake() any thread; clear() the thread that waits.
// Invariants: fd() is readable from a wake() until the next clear(). Nothing blocks.
#pragma once

#include <utility>

#include "base/fd.hpp"

namespace linkspan::base {

class WakeEvent {
 public:
  static Result<WakeEvent> create();

  int fd() const noexcept { return fd_.get(); }  ///< Borrowed, for waiting.
  void wake() const noexcept;
  void clear() const noexcept;  ///< Does nothing if no wake() came.

 private:
  explicit WakeEvent(Fd fd) noexcept : fd_(std::move(fd)) {}

  Fd fd_;
};

}  // namespace linkspan::base
