#include "transport/registry.hpp"

#include "transport/local/local_transport.hpp"
#include "transport/nccl_net/nccl_net_transport.hpp"
#include "transport/tcp/tcp_transport.hpp"

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
  const auto files = nccl_net::files_of(context.options->nccl_net_plugin);
  if (!files.empty()) {  // "none" is empty, too
    auto plugin = nccl_net::Plugin::load(files, *context.log);
    if (!plugin.ok()) return plugin.status();
    auto net = nccl_net::NcclNetTransport::create({.plugin = *std::move(plugin),
                                                   .topology = context.topology,
                                                   .incarnation = context.incarnation,
                                                   .unpack = context.options->unpack,
                                                   .copy_ctas = context.options->copy_ctas});
    if (!net.ok()) return net.status();
    all.push_back(*std::move(net));
  }
  if (context.options->tcp_streams != 0)
    all.push_back(std::make_unique<tcp::TcpTransport>(
        tcp::TcpOptions{.topology = context.topology,
                        .incarnation = context.incarnation,
                        .connections = context.options->tcp_streams,
                        .copy_ctas = context.options->copy_ctas,
                        .tls = context.options->tls}));
  return all;
}

}  // namespace linkspan::transport
