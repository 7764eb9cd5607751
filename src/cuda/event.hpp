// cuda/event.hpp - owns one CUevent without timing.
//
// Creating and destroying take driver locks, so events come from a pool that is filled at set-up
// (docs/cuda_notes.md, "calls that synchronise").
// Threads: externally synchronised.
// Invariants: the context that it was created in outlives it.
#pragma once

#include <utility>

#include "cuda/device_scope.hpp"

namespace linkspan::cuda {

class Event {
 public:
  static Result<Event> create(const DeviceScope& scope);

  Event(Event&& other) noexcept
      : driver_(other.driver_),
        context_(other.context_),
        event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(context_, other.context_);
    std::swap(event_, other.event_);
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();  // silent while the driver unloads

  CUevent get() const noexcept { return event_; }
  /// Never on a stream that captures: the waiting stream would be pulled into the capture.
  Status record(const DeviceScope& scope, CUstream stream);
  /// True once all work before the last record() is done; false while it runs. An error is that
  /// work's error, with Scope::process when the context is lost.
  Result<bool> done(const DeviceScope& scope) const;

 private:
  Event(const DeviceScope& scope, CUevent event) noexcept
      : driver_(&scope.driver()), context_(scope.context()), event_(event) {}

  const Driver* driver_;
  CUcontext context_;
  CUevent event_;  // null only after a move
};

}  // namespace linkspan::cuda
