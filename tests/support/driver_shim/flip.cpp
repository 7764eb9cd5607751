#include "tests/support/driver_shim/flip.hpp"

#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace linkspan::cuda {
namespace {

struct Entries {
#define LINKSPAN_MEMBER(name, version, parameters) CUresult(*name) parameters = nullptr;
  LINKSPAN_DRIVER_REQUIRED(LINKSPAN_MEMBER)
#undef LINKSPAN_MEMBER
};
Entries real;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): written once

bool on_device(CUdeviceptr address) {
  unsigned kind = 0;
  const CUresult r = real.cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  return r == CUDA_SUCCESS && kind == CU_MEMORYTYPE_DEVICE;
}

/// Flips a bit of what was copied. Returns `copied`, unless the flip itself fails.
CUresult flip(CUresult copied, CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
              CUstream stream) {
  if (copied != CUDA_SUCCESS || bytes == 0 || !on_device(to) || !on_device(from)) return copied;
  unsigned char byte = 0;
  const auto here = reinterpret_cast<CUdeviceptr>(&byte);
  CUresult r = real.cuMemcpyAsync(here, to, 1, stream);
  if (r == CUDA_SUCCESS) r = real.cuStreamSynchronize(stream);
  byte ^= 1;
  if (r == CUDA_SUCCESS) r = real.cuMemcpyAsync(to, here, 1, stream);
  return r == CUDA_SUCCESS ? real.cuStreamSynchronize(stream) : r;
}

CUresult copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return flip(real.cuMemcpyAsync(to, from, bytes, stream), to, from, bytes, stream);
}

CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                   std::size_t bytes, CUstream stream) {
  return flip(real.cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, stream), to, from,
              bytes, stream);
}

bool find_real(GetProcAddress look_up) {
  const auto find = [look_up](const char* name, int version, auto*& member) {
    void* entry = nullptr;
    CUdriverProcAddressQueryResult found{};
    look_up(name, &entry, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);
    member = reinterpret_cast<std::remove_reference_t<decltype(member)>>(entry);
  };
#define LINKSPAN_FIND(name, version, parameters) find(#name, version, real.name);
  LINKSPAN_DRIVER_REQUIRED(LINKSPAN_FIND)
#undef LINKSPAN_FIND
  return true;
}

}  // namespace

void* flipping(GetProcAddress look_up, const char* symbol, void* function) {
  if (std::getenv("LINKSPAN_SHIM_FLIP") == nullptr) return function;
  [[maybe_unused]] static const bool kFound = find_real(look_up);
  if (std::strcmp(symbol, "cuMemcpyAsync") == 0) return reinterpret_cast<void*>(&copy);
  if (std::strcmp(symbol, "cuMemcpyPeerAsync") == 0) return reinterpret_cast<void*>(&copy_peer);
  return function;
}

}  // namespace linkspan::cuda
