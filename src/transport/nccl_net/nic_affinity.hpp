// transport/nccl_net/nic_affinity.hpp - the NIC that lies nearest to a GPU.
//
// Plugins tell where their devices lie by paths of sysfs, whose folders are PCI bridges: the more
// of them two devices share, the nearer they are.
// Threads: any thread.
#pragma once

#include <string>
#include <vector>

#include "cuda/topology.hpp"
#include "transport/nccl_net/net.hpp"

namespace linkspan::transport::nccl_net {

/// "/sys/devices/pci0000:15/.../0000:18:00.0". Empty: sysfs does not show it, as in many
/// containers.
std::string sysfs_path(const cuda::DeviceInfo& gpu);

/// Index of that one of `nics`, which are not none; where several are as near, they take turns by
/// the GPU's ordinal.
int nearest_nic(const std::vector<Properties>& nics, const std::string& gpu_path, int ordinal);

}  // namespace linkspan::transport::nccl_net
