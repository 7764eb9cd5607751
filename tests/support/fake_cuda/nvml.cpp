// tests/support/fake_cuda/nvml.cpp - what linkspan asks NVML: the fabric of each GPU.
//
// FAKE_CUDA_FABRIC names it, "CLUSTER:CLIQUE", for all GPUs: 32 hexadecimal digits and a number.
// Without it NVLink ends at this host.
#include <cstdlib>
#include <string>

#include "cuda/nvml_abi.hpp"

namespace {

using linkspan::cuda::nvml::FabricInfo, linkspan::cuda::nvml::kSuccess,
    linkspan::cuda::nvml::kJoined;
constexpr int kNotFound = 6;
constexpr unsigned char kNotSupported = 0;

char device;

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED int nvmlInit_v2();
EXPORTED int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** found);
EXPORTED int nvmlDeviceGetGpuFabricInfo(void* of, FabricInfo* info);

int nvmlInit_v2() { return kSuccess; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** found) {
  *found = &device;
  return *bus_id != '\0' ? kSuccess : kNotFound;
}

int nvmlDeviceGetGpuFabricInfo(void* of, FabricInfo* info) {
  if (of != &device) return kNotFound;
  const char* const set = std::getenv("FAKE_CUDA_FABRIC");
  *info = {.cluster = {}, .status = kSuccess, .clique = 0, .state = kNotSupported};
  if (set == nullptr) return kSuccess;
  const std::string text = set;
  for (std::size_t i = 0; i < info->cluster.size(); ++i)
    info->cluster.at(i) = static_cast<std::byte>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  info->clique = static_cast<unsigned>(std::stoul(text.substr(33)));
  info->state = kJoined;
  return kSuccess;
}
