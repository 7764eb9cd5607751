// cuda/device_scope.hpp - the only way to call the driver: a device's context is current and the
// calls leave no trace in the caller's thread.
//
// What this folder does takes a `const DeviceScope&`, or enters one itself. It pushes the device's
// primary context and sets the capture mode to relaxed: without that, a query or an allocation
// here would invalidate a CUDA graph that the user captures in another thread (docs/cuda_notes.md,
// "capture"). Both are put back at the end.
// Threads: lives on one thread's stack. Cost: about 0.1 us; open one for a batch, not for a call.
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
        before_(other.before_) {}
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  DeviceScope& operator=(DeviceScope&&) = delete;
  ~DeviceScope();

  const Driver& driver() const noexcept { return *driver_; }
  /// What is current while the scope lives; null: nothing was pushed.
  CUcontext context() const noexcept { return context_; }

 private:
  DeviceScope(const Driver& driver, CUcontext context, CUstreamCaptureMode before) noexcept
      : driver_(&driver), context_(context), before_(before) {}

  const Driver* driver_;  // null only after a move
  CUcontext context_;
  CUstreamCaptureMode before_;  // the thread's capture mode before enter()
};

}  // namespace linkspan::cuda
