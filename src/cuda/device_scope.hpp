// cuda/device_scope.hpp - the only way to call the driver: a device's context is current and the
// calls leave no trace in the caller's thread.
//
// What this folder does takes a `const DeviceScope&`, or enters one itself. It pushes the device's
// primary context and sets the capture mode to relaxed: without that, a query or an allocation
// here would invalidate a CUDA graph that the user captures in another thread (fact:
// Capture.QueriesAndAllocationsOfAnotherThreadEndIt). Both are put back at the end. A scope inside
// one of the same context costs nothing.
// Threads: lives on one thread's stack, and scopes of a thread end in the reverse order. Cost:
// about 0.1 us, four calls; open one for a batch, not for a call.
#pragma once

#include <utility>

#include "cuda/driver.hpp"

namespace linkspan::cuda {

class DeviceScope {
 public:
  /// `context` is the retained primary context of a device and outlives the DeviceScope.
  static Result<DeviceScope> enter(const Driver& driver, CUcontext context);
  /// For the few calls that need no context: devices, primary contexts, pointer attributes.
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
  /// What it was entered for; null: without a context.
  CUcontext context() const noexcept { return context_; }

 private:
  /// What the scopes of a thread have set.
  struct Current {
    const Driver* driver = nullptr;  // null: the thread is in no scope
    CUcontext context = nullptr;     // null: none was pushed
  };
  explicit DeviceScope(const Driver& driver) noexcept : driver_(&driver), outer_(current()) {}

  static Current& current() noexcept;  // of this thread

  const Driver* driver_;  // null only after a move
  CUcontext context_ = nullptr;
  Current outer_;                 // before enter()
  CUstreamCaptureMode before_{};  // the thread's, if this is its outermost scope
  bool pushed_ = false;
};

}  // namespace linkspan::cuda
