#include "base/wake_event.hpp"

#include <sys/eventfd.h>

namespace linkspan::base {

Result<WakeEvent> WakeEvent::create() {
  auto fd = Fd::from("eventfd", ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.ok()) return fd.status();
  return WakeEvent(*std::move(fd));
}

// Both fail only where there is nothing to do: a full counter is readable, an empty one is clear.

void WakeEvent::wake() const noexcept { (void)::eventfd_write(fd_.get(), 1); }

void WakeEvent::clear() const noexcept {
  eventfd_t wakes = 0;
  (void)::eventfd_read(fd_.get(), &wakes);
}

}  // namespace linkspan::base
