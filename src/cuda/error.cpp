// cuda/error.cpp - the driver's numbers as a Status. Declared in driver.hpp.
#include <string>

#include "cuda/driver.hpp"

namespace linkspan::cuda {
namespace {

Code code_of(CUresult result) noexcept {
  switch (result) {
    case CUDA_ERROR_NOT_READY:
      return Code::pending;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
      return Code::unsupported;
    case CUDA_ERROR_NOT_PERMITTED:
      return Code::permission_denied;
    case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
      return Code::busy;
    default:
      return Code::cuda;
  }
}

}  // namespace

bool loses_context(CUresult result) noexcept {
  switch (result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_UNKNOWN:
      return true;
    default:
      return false;
  }
}

Status to_status(const Driver& driver, CUresult result, const char* call, Where at) {
  if (result == CUDA_SUCCESS) return {};
  const char* name = nullptr;
  const char* text = nullptr;  // both stay null for a number that the driver does not know
  if (driver.cuGetErrorName(result, &name) != CUDA_SUCCESS) name = nullptr;
  if (driver.cuGetErrorString(result, &text) != CUDA_SUCCESS) text = nullptr;
  std::string what = std::string(call) + ": " + (name != nullptr ? name : "CUDA error") + " (" +
                     std::to_string(static_cast<unsigned>(result)) + ")";
  if (text != nullptr) what += std::string(", ") + text;
  return Status(code_of(result), loses_context(result) ? Scope::process : Scope::request,
                std::move(what), at);
}

}  // namespace linkspan::cuda
