#include "cuda/stream.hpp"

#include "cuda/event.hpp"

namespace linkspan::cuda {

Result<Stream> Stream::create(const DeviceScope& scope, int priority) {
  CUstream stream = nullptr;
  const CUresult r =
      scope.driver().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, priority);
  if (r != CUDA_SUCCESS) return to_status(scope.driver(), r, "cuStreamCreateWithPriority");
  return Stream(scope, stream);
}

Stream::~Stream() {
  if (stream_ == nullptr) return;
  const Result<DeviceScope> scope = DeviceScope::enter(*driver_, context_);
  if (scope.ok()) driver_->cuStreamDestroy(stream_);
}

Status Stream::query(const DeviceScope& scope) const {
  static const Status running(Code::pending, Scope::request, "the stream has work left");
  const CUresult r = scope.driver().cuStreamQuery(stream_);
  return r == CUDA_ERROR_NOT_READY ? running : to_status(scope.driver(), r, "cuStreamQuery");
}

Status Stream::write_value(const DeviceScope& scope, CUdeviceptr flag, std::uint64_t value) {
  const Driver& driver = scope.driver();
  return to_status(driver,
                   driver.cuStreamWriteValue64(stream_, flag, value, CU_STREAM_WRITE_VALUE_DEFAULT),
                   "cuStreamWriteValue64");
}

Status Stream::write_value32(const DeviceScope& scope, CUdeviceptr flag, std::uint32_t value) {
  const Driver& driver = scope.driver();
  return to_status(driver,
                   driver.cuStreamWriteValue32(stream_, flag, value, CU_STREAM_WRITE_VALUE_DEFAULT),
                   "cuStreamWriteValue32");
}

Status Stream::wait_value(const DeviceScope& scope, CUdeviceptr flag, std::uint64_t value) {
  const Driver& driver = scope.driver();
  return to_status(driver,
                   driver.cuStreamWaitValue64(stream_, flag, value, CU_STREAM_WAIT_VALUE_GEQ),
                   "cuStreamWaitValue64");
}

Status Stream::copy(const DeviceScope& scope, CUdeviceptr to, CUdeviceptr from,
                    std::uint64_t bytes) const {
  const Driver& driver = scope.driver();
  return to_status(driver, driver.cuMemcpyAsync(to, from, bytes, stream_), "cuMemcpyAsync");
}

Status Stream::fill(const DeviceScope& scope, CUdeviceptr to, unsigned char value,
                    std::uint64_t bytes) const {
  const Driver& driver = scope.driver();
  return to_status(driver, driver.cuMemsetD8Async(to, value, bytes, stream_), "cuMemsetD8Async");
}

Status Stream::launch(const DeviceScope& scope, CUfunction function, unsigned ctas,
                      unsigned threads, void** parameters) const {
  const Driver& driver = scope.driver();
  return to_status(
      driver,
      driver.cuLaunchKernel(function, ctas, 1, 1, threads, 1, 1, 0, stream_, parameters, nullptr),
      "cuLaunchKernel");
}

Status Stream::synchronize(const DeviceScope& scope) const {
  return to_status(scope.driver(), scope.driver().cuStreamSynchronize(stream_),
                   "cuStreamSynchronize");
}

Status Stream::wait_for(const DeviceScope& scope, const Event& event) {
  return make_wait(scope, stream_, event);
}

Status make_wait(const DeviceScope& scope, CUstream stream, const Event& event) {
  return to_status(scope.driver(), scope.driver().cuStreamWaitEvent(stream, event.get(), 0),
                   "cuStreamWaitEvent");
}

Result<bool> is_capturing(const DeviceScope& scope, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (const CUresult r = scope.driver().cuStreamIsCapturing(stream, &status); r != CUDA_SUCCESS)
    return to_status(scope.driver(), r, "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace linkspan::cuda
