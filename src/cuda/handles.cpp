#include "cuda/handles.hpp"

#include <bit>

#include "cuda/ipc.hpp"

namespace linkspan::cuda {
namespace {

Status reworded(Code code, const Device& device, CUresult result, const char* call) {
  return Status(code, Scope::request, to_status(device.driver(), result, call).what());
}

}  // namespace

Result<IpcHandle> export_ipc(const Device& device, std::uint64_t address) {
  const Result<DeviceScope> scope = device.enter();
  if (!scope.ok()) return scope.status();
  CUipcMemHandle handle{};
  const CUresult r = device.driver().cuIpcGetMemHandle(&handle, address);
  if (r == CUDA_ERROR_INVALID_VALUE)
    return reworded(Code::unsupported, device, r, "cuIpcGetMemHandle");
  if (r != CUDA_SUCCESS) return to_status(device.driver(), r, "cuIpcGetMemHandle");
  return std::bit_cast<IpcHandle>(handle);
}

Result<IpcMapping> IpcMapping::open(const Device& device, const IpcHandle& handle) {
  const Driver& driver = device.driver();
  const Result<DeviceScope> scope = device.enter();
  if (!scope.ok()) return scope.status();
  CUdeviceptr base = 0;
  CUresult r = open_ipc(driver, std::bit_cast<CUipcMemHandle>(handle), base);
  if (r == CUDA_ERROR_INVALID_VALUE || r == CUDA_ERROR_INVALID_HANDLE)
    return reworded(Code::corrupt, device, r, "cuIpcOpenMemHandle");
  if (r == CUDA_ERROR_INVALID_CONTEXT)  // ours is valid (fact: Handles.TheExporterCannotOpenItsOwn)
    return reworded(Code::unsupported, device, r, "cuIpcOpenMemHandle");
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuIpcOpenMemHandle");
  IpcMapping mapping(device, base);
  std::size_t bytes = 0;
  r = driver.cuMemGetAddressRange(nullptr, &bytes, base);
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuMemGetAddressRange");
  mapping.bytes_ = bytes;
  return mapping;
}

IpcMapping::~IpcMapping() {
  if (device_ == nullptr) return;
  const Result<DeviceScope> scope = device_->enter();
  if (scope.ok()) close_ipc(device_->driver(), base_);
}

}  // namespace linkspan::cuda
