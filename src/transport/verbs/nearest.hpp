// transport/verbs/nearest.hpp - which RDMA devices are nearest to the memory of a GPU.
//
// Threads: any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "cuda/topology.hpp"
#include "transport/verbs/device.hpp"

namespace linkspan::transport::verbs {

/// Returns how near a device is to memory: PCI bridges that it shares with the GPU, which is null
/// for memory of the host.
std::size_t nearness(const VerbsDevice& device, const cuda::Device* gpu);

/// A device by its name and its path in sysfs.
struct PlacedDevice {
  std::string name, pci_path;
};

struct Nearest {
  /// "GPU 0000:18:00.0: mlx5_0, mlx5_1; ...". Empty: there is no GPU, or sysfs shows no device.
  std::string text;
  bool redirected = false;  ///< By a bridge between a GPU and its device, which the text names.
};
/// Finds the nearest devices to each of NVIDIA's GPUs.
Nearest find_nearest(std::span<const PlacedDevice> devices,
                     const std::string& gpus = "/proc/driver/nvidia/gpus",
                     const std::string& sysfs = "/sys");

}  // namespace linkspan::transport::verbs
