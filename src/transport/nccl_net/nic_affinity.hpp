// transport/nccl_net/nic_affinity.hpp - finds the NIC nearest to a GPU.
//
// Plugins give their devices' sysfs paths, whose folders are PCI bridges: the more folders two
// devices share, the nearer they are.
// Threads: any thread.
#pragma once

#include <string>
#include <vector>

#include "cuda/topology.hpp"
#include "transport/nccl_net/net.hpp"

namespace linkspan::transport::nccl_net {

/// Returns a path such as "/sys/devices/pci0000:15/.../0000:18:00.0"; empty if sysfs does not show
/// the GPU, as in many containers.
std::string sysfs_path(const cuda::DeviceInfo& gpu);

/// Returns the index of the nearest of `nics`, which must not be empty. Equally near ones are
/// chosen in turn by the GPU's ordinal.
int nearest_nic(const std::vector<Properties>& nics, const std::string& gpu_path, int ordinal);

}  // namespace linkspan::transport::nccl_net
