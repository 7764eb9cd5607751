#include "cuda/memory.hpp"

namespace linkspan::cuda {

OwnedMemory::~OwnedMemory() {
  if (driver_ == nullptr) return;
  const Result<DeviceScope> scope = DeviceScope::enter(*driver_, context_);
  if (scope.ok()) release_(*driver_, address_, data_);
}

Result<PinnedBuffer> PinnedBuffer::create(const DeviceScope& scope, std::size_t bytes) {
  const Driver& driver = scope.driver();
  const OwnedMemory::Release free_host = [](const Driver& d, CUdeviceptr, void* memory) {
    d.cuMemFreeHost(memory);
  };
  void* data = nullptr;
  CUresult r =
      driver.cuMemHostAlloc(&data, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuMemHostAlloc");
  CUdeviceptr address = 0;
  r = driver.cuMemHostGetDevicePointer(&address, data, 0);
  PinnedBuffer buffer(OwnedMemory(scope, free_host, address, data, bytes));
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuMemHostGetDevicePointer");
  return buffer;
}

Result<DeviceBuffer> DeviceBuffer::create(const DeviceScope& scope, std::size_t bytes) {
  const OwnedMemory::Release free_device = [](const Driver& d, CUdeviceptr memory, void*) {
    d.cuMemFree(memory);
  };
  CUdeviceptr address = 0;
  if (const CUresult r = scope.driver().cuMemAlloc(&address, bytes); r != CUDA_SUCCESS)
    return to_status(scope.driver(), r, "cuMemAlloc");
  return DeviceBuffer(OwnedMemory(scope, free_device, address, nullptr, bytes));
}

Result<HostRegistration> HostRegistration::create(const DeviceScope& scope, void* data,
                                                  std::size_t bytes) {
  const Driver& driver = scope.driver();
  const OwnedMemory::Release unregister = [](const Driver& d, CUdeviceptr, void* memory) {
    d.cuMemHostUnregister(memory);
  };
  CUresult r = driver.cuMemHostRegister(data, bytes,
                                        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuMemHostRegister");
  CUdeviceptr address = 0;
  r = driver.cuMemHostGetDevicePointer(&address, data, 0);
  HostRegistration registration(OwnedMemory(scope, unregister, address, data, bytes));
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuMemHostGetDevicePointer");
  return registration;
}

}  // namespace linkspan::cuda
