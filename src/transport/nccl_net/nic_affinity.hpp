// transport/nccl_net/nic_affinity.hpp - finds the NIC nearest to a GPU.
//
// Plugins give their devices' sysfs paths.
// Threads: any thread.
#pragma once

#include <string>
#include <vector>

#include "transport/nccl_net/net.hpp"

namespace linkspan::transport::nccl_net {

/// Returns the index of the nearest of `nics`, which must not be empty. Equally near ones are
/// chosen in turn by the GPU's ordinal.
int nearest_nic(const std::vector<Properties>& nics, const std::string& gpu_path, int ordinal);

}  // namespace linkspan::transport::nccl_net
