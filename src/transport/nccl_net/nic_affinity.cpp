#include "transport/nccl_net/nic_affinity.hpp"

#include <algorithm>

#include "base/pci.hpp"

namespace linkspan::transport::nccl_net {

int nearest_nic(const std::vector<Properties>& nics, const std::string& gpu_path, int ordinal) {
  std::size_t most = 0;
  std::vector<int> equals;
  for (std::size_t i = 0; i < nics.size(); ++i) {
    const std::size_t shared = base::shared_bridges(nics[i].pci_path, gpu_path);
    if (shared > most) equals.clear();
    if (shared >= most) equals.push_back(static_cast<int>(i));
    most = std::max(most, shared);
  }
  return equals[static_cast<std::size_t>(ordinal) % equals.size()];
}

}  // namespace linkspan::transport::nccl_net
