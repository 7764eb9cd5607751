// bench/bare/machine.hpp - what ran: the block that stands beside every figure.
//
// Threads: any thread.
#pragma once

#include <string>
#include <vector>

#include "cuda/topology.hpp"

namespace linkspan::bare {

struct Machine {
  std::vector<std::string> gpus;
  std::string driver, cuda;  ///< "580.159.04", "13.0"; empty: none, or a simulated one.
  std::string driver_file;   ///< The library that was loaded; empty: none.
  unsigned cpus = 0;
  std::string kernel;
};

/// `topology` may be null: no GPU.
Machine describe_machine(const cuda::Topology* topology);

/// Asks the driver whether copies and kernels of one GPU may access the other's memory.
Result<bool> can_access_peer(const cuda::Device& from, const cuda::Device& to);

}  // namespace linkspan::bare
