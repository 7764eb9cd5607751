// bench/tcp_small.hpp - 8 B and 1 MiB by TCP, from the call to the known end, beside bare sockets.
//
// Threads: any; measure_small() makes its own.
#pragma once

#include <span>

#include "bench/tcp_ping.hpp"
#include "cuda/topology.hpp"

namespace linkspan::bench {

/// A transfer from one memory to another, which lie on the first and the last GPU, or the host.
struct SmallCase {
  const char* id;
  bool on_gpu;
  std::uint64_t bytes;
  double bar;  // maximum of time by bare time
};
inline constexpr SmallCase kSmallCases[] = {
    {"host_host.8B.submit_to_done.p50", false, 8, 1.2},
    {"gpu_gpu.8B.submit_to_done.p50", true, 8, 1.3},
    {"host_host.1MiB.submit_to_done.p50", false, std::uint64_t{1} << 20, 1.43},
    {"gpu_gpu.1MiB.submit_to_done.p50", true, std::uint64_t{1} << 20, 1.43}};

/// The row of that case. The ceiling: as many sockets as the Engine uses send host memory, each
/// answered by 8 bytes, and behind that the bare copies between the GPUs and pinned memory.
Result<Json> measure_small(const SmallCase& c, std::span<const cuda::Device* const> gpus,
                           unsigned turns, unsigned runs);

}  // namespace linkspan::bench
