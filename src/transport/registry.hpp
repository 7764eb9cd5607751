// transport/registry.hpp - every transport of this build.
//
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

/// Best first, which is the order in which the router tries them.
Result<std::vector<std::unique_ptr<Transport>>> create_all(const Context& context);

}  // namespace linkspan::transport
