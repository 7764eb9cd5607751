#include "transport/verbs/nearest.hpp"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "base/pci.hpp"

namespace linkspan::transport::verbs {

std::size_t nearness(const VerbsDevice& device, const cuda::Device* gpu) {
  if (gpu == nullptr) return 0;
  return base::shared_bridges(device.pci_path(), base::pci_path_of(gpu->info().bus_id));
}

Nearest find_nearest(std::span<const PlacedDevice> devices, const std::string& gpus,
                     const std::string& sysfs) {
  std::error_code none;
  std::set<std::string> bus_ids;
  for (const auto& each : std::filesystem::directory_iterator(gpus, none))
    bus_ids.insert(each.path().filename());
  Nearest out;
  for (const std::string& bus_id : bus_ids) {
    const std::string path = base::pci_path_of(bus_id, sysfs);
    const auto near = [&](const PlacedDevice& each) {
      return base::shared_bridges(each.pci_path, path);
    };
    std::size_t most = 1;
    for (const PlacedDevice& each : devices) most = std::max(most, near(each));
    std::string names;
    for (const PlacedDevice& each : devices) {
      if (near(each) != most) continue;
      names += (names.empty() ? "" : ", ") + each.name;
      const std::string redirect = base::acs_redirect(each.pci_path, path);
      if (!redirect.empty()) names += " (by the CPU: ACS of bridge " + redirect + ")";
      out.redirected |= !redirect.empty();
    }
    if (names.empty()) continue;
    out.text += out.text.empty() ? "GPU " : "; GPU ";
    out.text.append(bus_id).append(": ").append(names);
  }
  return out;
}

}  // namespace linkspan::transport::verbs
