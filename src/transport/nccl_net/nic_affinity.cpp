#include "transport/nccl_net/nic_affinity.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>

namespace linkspan::transport::nccl_net {
namespace {

std::size_t shared_folders(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto ends = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<std::size_t>(std::distance(a.begin(), ends.first));
}

}  // namespace

std::string sysfs_path(const cuda::DeviceInfo& gpu) {
  std::string name = gpu.bus_id;  // upper case, unlike in sysfs
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::error_code error;
  const auto path = std::filesystem::canonical("/sys/bus/pci/devices/" + name, error);
  return error ? std::string() : path.string();
}

int nearest_nic(const std::vector<Properties>& nics, const std::string& gpu_path, int ordinal) {
  std::size_t most = 0;
  std::vector<int> equals;
  for (std::size_t i = 0; i < nics.size(); ++i) {
    const std::size_t shared = shared_folders(nics[i].pci_path, gpu_path);
    if (shared > most) equals.clear();
    if (shared >= most) equals.push_back(static_cast<int>(i));
    most = std::max(most, shared);
  }
  return equals[static_cast<std::size_t>(ordinal) % equals.size()];
}

}  // namespace linkspan::transport::nccl_net
