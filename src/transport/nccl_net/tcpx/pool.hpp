// transport/nccl_net/tcpx/pool.hpp - the bounce pool into which the receives of an UNPACK comm go.
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

/// Returns the pool that the comm's device handle names; valid while the comm lives. Waits for a
/// copy from the GPU, so it is not on the path of a byte. corrupt: the handle names nothing.
Result<Pool> find_pool(const cuda::Topology& topology, const cuda::Device& device,
                       const abi::DeviceHandle* kernels);

}  // namespace linkspan::transport::nccl_net::tcpx
