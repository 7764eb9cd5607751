#include "transport/factory.hpp"

#include "transport/local/local_transport.hpp"

namespace linkspan::transport::local {

namespace {

Result<std::unique_ptr<Transport>> create(const Context& context) {
  return LocalTransport::create({.topology = context.topology,
                                 .registry = context.registry,
                                 .incarnation = context.incarnation,
                                 .cpu_threads = context.options->cpu_threads,
                                 .copy_ctas = context.options->copy_ctas,
                                 .relay_gpus = context.options->relay_gpus,
                                 .calibrate = context.options->calibrate,
                                 .staging = context.options->staging});
}

}  // namespace

// Its options are those of the copiers (base/options.hpp).
extern constinit const Factory factory{.create = create};

}  // namespace linkspan::transport::local
