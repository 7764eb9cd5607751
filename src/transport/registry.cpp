#include "transport/registry.hpp"

#include "transport/local/local_transport.hpp"

namespace linkspan::transport {

Result<std::vector<std::unique_ptr<Transport>>> create_all(const Context& context) {
  std::vector<std::unique_ptr<Transport>> all;
  auto local = local::LocalTransport::create({.topology = context.topology,
                                              .registry = context.registry,
                                              .incarnation = context.incarnation,
                                              .cpu_threads = context.options->cpu_threads,
                                              .copy_ctas = context.options->copy_ctas,
                                              .relay_gpus = context.options->relay_gpus,
                                              .calibrate = context.options->calibrate,
                                              .staging = context.options->staging});
  if (!local.ok()) return local.status();
  all.push_back(*std::move(local));
  return all;
}

}  // namespace linkspan::transport
