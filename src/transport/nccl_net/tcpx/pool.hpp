// transport/nccl_net/tcpx/pool.hpp - where the receives of a comm of the device type UNPACK land.
//
// Threads: a value.
#pragma once

#include <cstdint>

#include "cuda/topology.hpp"
#include "transport/nccl_net/abi.hpp"
#include "transport/nccl_net/tcpx/structs.hpp"

namespace linkspan::transport::nccl_net::tcpx {

struct Pool {
  const MetaQueue* meta = nullptr;
  cuda::CUdeviceptr bounce = 0;
  std::uint64_t bytes = 0;
};

/// As the comm's handle for kernels names it, for as long as the comm lives. Waits for a copy from
/// the GPU: not on the path of a byte. corrupt: it names nothing.
Result<Pool> find_pool(const cuda::Topology& topology, const cuda::Device& device,
                       const abi::DeviceHandle* kernels);

}  // namespace linkspan::transport::nccl_net::tcpx
