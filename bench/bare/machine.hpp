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
  unsigned cpus = 0;
  std::string kernel;
};

/// `topology` may be null: no GPU.
Machine describe_machine(const cuda::Topology* topology);

}  // namespace linkspan::bare
