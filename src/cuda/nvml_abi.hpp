// cuda/nvml_abi.hpp - the types of NVML that are used, declared here because its header is not
// needed to build.
//
// Threads: plain data.
// Invariants: the layout of NVML 12 and 13.
#pragma once

#include <array>
#include <cstddef>

namespace linkspan::cuda::nvml {

constexpr int kSuccess = 0;           // NVML_SUCCESS
constexpr unsigned char kJoined = 3;  // NVML_GPU_FABRIC_STATE_COMPLETED

using Device = void*;  // nvmlDevice_t

/// nvmlGpuFabricInfo_t.
struct FabricInfo {
  std::array<std::byte, 16> cluster;
  int status;
  unsigned clique;
  unsigned char state;
};

}  // namespace linkspan::cuda::nvml
