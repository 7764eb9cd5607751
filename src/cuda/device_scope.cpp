#include "cuda/device_scope.hpp"

namespace linkspan::cuda {

Result<DeviceScope> DeviceScope::without_context(const Driver& driver) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (const CUresult r = driver.cuThreadExchangeStreamCaptureMode(&mode); r != CUDA_SUCCESS)
    return to_status(driver, r, "cuThreadExchangeStreamCaptureMode");
  return DeviceScope(driver, nullptr, mode);
}

Result<DeviceScope> DeviceScope::enter(const Driver& driver, CUcontext context) {
  Result<DeviceScope> scope = without_context(driver);
  if (!scope.ok()) return scope;
  if (const CUresult r = driver.cuCtxPushCurrent(context); r != CUDA_SUCCESS)
    return to_status(driver, r, "cuCtxPushCurrent");
  scope->context_ = context;
  return scope;
}

// Both calls can fail only when the process is ending; there is nobody to tell then.
DeviceScope::~DeviceScope() {
  if (driver_ == nullptr) return;
  if (CUcontext popped = nullptr; context_ != nullptr) driver_->cuCtxPopCurrent(&popped);
  driver_->cuThreadExchangeStreamCaptureMode(&before_);
}

}  // namespace linkspan::cuda
