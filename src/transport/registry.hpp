// transport/registry.hpp - creates every transport of this build.
//
// Not on the path of a byte: the engine calls it once.
// Threads: externally synchronised.
#pragma once

#include <memory>
#include <vector>

#include "base/options.hpp"
#include "memory/registry.hpp"
#include "transport/transport.hpp"

namespace linkspan::transport {

struct Context {
  cuda::Topology* topology = nullptr;  ///< Null: no GPU here.
  memory::Registry* registry = nullptr;
  std::uint64_t incarnation = 0;
  const base::Options* options = nullptr;
  const base::Log* log = nullptr;
};

/// Returns the transports, best first: the router tries them in this order.
Result<std::vector<std::unique_ptr<Transport>>> create_all(const Context& context);

}  // namespace linkspan::transport
