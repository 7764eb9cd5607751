#include "cuda/nvlink_fabric.hpp"

#include <filesystem>
#include <system_error>

#include "base/environment.hpp"
#include "cuda/library.hpp"
#include "cuda/nvml_abi.hpp"

namespace linkspan::cuda {
namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";
constexpr const char* kImexChannels = "/dev/nvidia-caps-imex-channels";

struct Nvml {
  int (*find)(const char* bus_id, nvml::Device* device) = nullptr;
  int (*fabric_info)(nvml::Device device, nvml::FabricInfo* info) = nullptr;
};

template <class Function>
bool fill(Function*& member, void* library, const char* name) noexcept {
  member = reinterpret_cast<Function*>(find_symbol(library, name));
  return member != nullptr;
}

/// Loads NVML, unless it is not needed. A driver that the user has named brings its own, or none.
std::optional<Nvml> load() {
  const char* const named = base::environment("LINKSPAN_CUDA_LIBRARY");
  const bool own = named == nullptr || *named == '\0';
  std::error_code absent;
  if (own && (std::filesystem::is_empty(kImexChannels, absent) || absent)) return std::nullopt;
  const auto library = open_library(own ? kLibrary : named);
  if (!library.ok()) return std::nullopt;
  int (*init)() = nullptr;
  Nvml found;
  if (!fill(init, *library, "nvmlInit_v2") ||
      !fill(found.find, *library, "nvmlDeviceGetHandleByPciBusId_v2") ||
      !fill(found.fabric_info, *library, "nvmlDeviceGetGpuFabricInfo") || init() != nvml::kSuccess)
    return std::nullopt;
  return found;
}

}  // namespace

std::optional<NvlinkFabric> nvlink_fabric(const std::string& bus_id) {
  static const std::optional<Nvml> library = load();
  nvml::Device device = nullptr;
  nvml::FabricInfo info{};
  if (!library || library->find(bus_id.c_str(), &device) != nvml::kSuccess ||
      library->fabric_info(device, &info) != nvml::kSuccess)
    return std::nullopt;
  // Within one host the cluster has no number.
  const NvlinkFabric fabric{.cluster = info.cluster, .clique = info.clique};
  if (info.state != nvml::kJoined || info.status != nvml::kSuccess ||
      fabric.cluster == NvlinkFabric().cluster)
    return std::nullopt;
  return fabric;
}

}  // namespace linkspan::cuda
