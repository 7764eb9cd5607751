#include "cuda/nvlink_fabric.hpp"

#include <filesystem>
#include <system_error>

#include "base/environment.hpp"
#include "cuda/library.hpp"

namespace linkspan::cuda {
namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";
constexpr const char* kImexChannels = "/dev/nvidia-caps-imex-channels";
constexpr int kSuccess = 0;           // NVML_SUCCESS
constexpr unsigned char kJoined = 3;  // NVML_GPU_FABRIC_STATE_COMPLETED

/// NVML's nvmlGpuFabricInfo_t.
struct FabricInfo {
  std::array<std::byte, 16> cluster;
  int status;
  unsigned clique;
  unsigned char state;
};
using NvmlDevice = void*;

struct Nvml {
  int (*find)(const char* bus_id, NvmlDevice* device) = nullptr;
  int (*fabric_info)(NvmlDevice device, FabricInfo* info) = nullptr;

  bool complete() const noexcept { return find != nullptr && fabric_info != nullptr; }
};

template <class Function>
bool fill(Function*& member, void* library, const char* name) noexcept {
  member = reinterpret_cast<Function*>(find_symbol(library, name));
  return member != nullptr;
}

/// Loads NVML; nothing of it where it is not needed. A driver that the user has named brings its
/// own, or none.
Nvml load() {
  const char* const named = base::environment("LINKSPAN_CUDA_LIBRARY");
  const bool own = named == nullptr || *named == '\0';
  std::error_code absent;
  if (own && (std::filesystem::is_empty(kImexChannels, absent) || absent)) return {};
  const auto library = open_library(own ? kLibrary : named);
  if (!library.ok()) return {};
  int (*init)() = nullptr;
  Nvml nvml;
  const bool found = fill(init, *library, "nvmlInit_v2") &&
                     fill(nvml.find, *library, "nvmlDeviceGetHandleByPciBusId_v2") &&
                     fill(nvml.fabric_info, *library, "nvmlDeviceGetGpuFabricInfo");
  return found && init() == kSuccess ? nvml : Nvml();
}

}  // namespace

std::optional<NvlinkFabric> nvlink_fabric(const std::string& bus_id) {
  static const Nvml nvml = load();
  NvmlDevice device = nullptr;
  FabricInfo info{};
  if (!nvml.complete() || nvml.find(bus_id.c_str(), &device) != kSuccess ||
      nvml.fabric_info(device, &info) != kSuccess)
    return std::nullopt;
  // Within one host the cluster has no number.
  const NvlinkFabric fabric{.cluster = info.cluster, .clique = info.clique};
  if (info.state != kJoined || info.status != kSuccess || fabric.cluster == NvlinkFabric().cluster)
    return std::nullopt;
  return fabric;
}

}  // namespace linkspan::cuda
