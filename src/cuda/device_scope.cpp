#include "cuda/device_scope.hpp"

namespace linkspan::cuda {

DeviceScope::Current& DeviceScope::current() noexcept {
  thread_local Current now;
  return now;
}

Result<DeviceScope> DeviceScope::without_context(const Driver& driver) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (current().driver != &driver) {
    if (const CUresult r = driver.cuThreadExchangeStreamCaptureMode(&mode); r != CUDA_SUCCESS)
      return to_status(driver, r, "cuThreadExchangeStreamCaptureMode");
  }
  DeviceScope scope(driver);
  scope.before_ = mode;
  if (current().driver != &driver) current() = {.driver = &driver, .context = nullptr};
  return scope;
}

Result<DeviceScope> DeviceScope::enter(const Driver& driver, CUcontext context) {
  Result<DeviceScope> scope = without_context(driver);
  if (!scope.ok()) return scope;
  if (current().context != context) {
    if (const CUresult r = driver.cuCtxPushCurrent(context); r != CUDA_SUCCESS)
      return to_status(driver, r, "cuCtxPushCurrent");
    scope->pushed_ = true;
    current().context = context;
  }
  scope->context_ = context;
  return scope;
}

// Both calls fail only while the process ends, so their results are ignored.
DeviceScope::~DeviceScope() {
  if (driver_ == nullptr) return;
  if (CUcontext popped = nullptr; pushed_) driver_->cuCtxPopCurrent(&popped);
  if (outer_.driver != driver_) driver_->cuThreadExchangeStreamCaptureMode(&before_);
  current() = outer_;
}

}  // namespace linkspan::cuda
