#include "cuda/event.hpp"

namespace linkspan::cuda {

Result<Event> Event::create(const DeviceScope& scope) {
  CUevent event = nullptr;
  const CUresult r = scope.driver().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (r != CUDA_SUCCESS) return to_status(scope.driver(), r, "cuEventCreate");
  return Event(scope, event);
}

Event::~Event() {
  if (event_ == nullptr) return;
  const Result<DeviceScope> scope = DeviceScope::enter(*driver_, context_);
  if (scope.ok()) driver_->cuEventDestroy(event_);
}

Status Event::record(const DeviceScope& scope, CUstream stream) {
  return to_status(scope.driver(), scope.driver().cuEventRecord(event_, stream), "cuEventRecord");
}

Result<bool> Event::done(const DeviceScope& scope) const {
  const CUresult r = scope.driver().cuEventQuery(event_);
  if (r == CUDA_ERROR_NOT_READY) return false;
  if (r != CUDA_SUCCESS) return to_status(scope.driver(), r, "cuEventQuery");
  return true;
}

}  // namespace linkspan::cuda
