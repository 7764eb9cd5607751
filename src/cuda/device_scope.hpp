// cuda/device_scope.hpp - makes a device's context current for calls of the driver; the only way to
// call it.
//
// Functions of this folder take a `const DeviceScope&` or enter one themselves. A scope pushes the
// device's primary context and sets the thread's capture mode to relaxed: otherwise a query or an
// allocation here would invalidate a CUDA graph that the user captures in another thread (fact:
// Capture.QueriesAndAllocationsOfAnotherThreadEndIt). The destructor restores both. A scope inside
// one of the same context costs nothing.
// Threads: lives on one thread's stack. Cost: four calls, about 0.1 us; enter one for a batch, not
// for a call.
// Invariants: scopes of a thread end in the reverse order.
#pragma once

#include <utility>

#include "cuda/driver.hpp"

namespace linkspan::cuda {

class DeviceScope {
 public:
  /// Enters a scope. `context` is the retained primary context of a device and outlives the scope.
  static Result<DeviceScope> enter(const Driver& driver, CUcontext context);
  /// Enters a scope for calls that need no context: devices, primary contexts, pointer attributes.
  static Result<DeviceScope> without_context(const Driver& driver);

  DeviceScope(DeviceScope&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)),
        context_(other.context_),
        outer_(other.outer_),
        before_(other.before_),
        pushed_(other.pushed_) {}
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  DeviceScope& operator=(DeviceScope&&) = delete;
  ~DeviceScope();

  const Driver& driver() const noexcept { return *driver_; }
  /// Returns the context that was entered; null if none was.
  CUcontext context() const noexcept { return context_; }

 private:
  /// State that the scopes of a thread have set.
  struct Current {
    const Driver* driver = nullptr;  // null: no scope is open
    CUcontext context = nullptr;     // null: no context was pushed
  };
  explicit DeviceScope(const Driver& driver) noexcept : driver_(&driver), outer_(current()) {}

  static Current& current() noexcept;  // of this thread

  const Driver* driver_;  // null only after a move
  CUcontext context_ = nullptr;
  Current outer_;                 // before enter()
  CUstreamCaptureMode before_{};  // capture mode of the thread; outermost scope only
  bool pushed_ = false;
};

}  // namespace linkspan::cuda
