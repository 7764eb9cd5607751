// cuda/nvlink_fabric.hpp - with which GPUs of other hosts NVLink joins a GPU, as NVML knows it.
//
// Threads: any thread.
// Invariants: NVML is loaded only on a host with an IMEX channel, without which no GPU memory is
// shared between hosts, and stays loaded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace linkspan::cuda {

/// Equal for GPUs that NVLink joins, across hosts too.
struct NvlinkFabric {
  std::array<std::byte, 16> cluster{};
  std::uint32_t clique = 0;

  friend bool operator==(const NvlinkFabric&, const NvlinkFabric&) = default;
};

/// Returns the fabric of the GPU with that PCI bus id. nullopt: NVLink joins it with no other host,
/// or NVML does not know yet.
std::optional<NvlinkFabric> nvlink_fabric(const std::string& bus_id);

}  // namespace linkspan::cuda
