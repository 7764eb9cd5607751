// tests/conformance/nccl_net.cpp - the nccl_net transport of this process over the test plugin, or
// over the one that linkspan exports, tried with one kind of memory.
#include <cstdlib>

#include "base/process.hpp"
#include "tests/conformance/subjects.hpp"
#include "transport/nccl_net/nccl_net_transport.hpp"

namespace linkspan::test {
namespace {

namespace nccl_net = transport::nccl_net;

/// `file`: the plugin, beside this program.
Result<HereEnd::Parts> nccl_net_parts(const std::string& file, MemoryKind kind) {
  if (Status status = kind == MemoryKind::device ? need_gpus(1) : Status(); !status.ok())
    return status;
  const std::uint64_t incarnation = base::random_u64();
  HereEnd::Parts parts;
  parts.kind = kind;
  parts.registry = std::make_unique<memory::Registry>(incarnation, topology());
  auto plugin = nccl_net::Plugin::load({file_beside_this_program(file)},
                                       base::Log(base::Level::warning, base::stderr_sink()));
  if (!plugin.ok()) return plugin.status();
  auto made = nccl_net::NcclNetTransport::create(
      {.plugin = *std::move(plugin), .topology = topology(), .incarnation = incarnation});
  if (!made.ok()) return made.status();
  parts.transport = *std::move(made);
  return parts;
}

constexpr const char *kV7 = "libnccl-net-linkspan-test.so",
                     *kNewest = "libnccl-net-linkspan-test-v12.so",
                     *kHostOnly = "libnccl-net-linkspan-test-host.so";

}  // namespace

Result<HereEnd::Parts> nccl_net_v7_host() { return nccl_net_parts(kV7, MemoryKind::host); }
Result<HereEnd::Parts> nccl_net_v7_device() { return nccl_net_parts(kV7, MemoryKind::device); }
Result<HereEnd::Parts> nccl_net_newest_host() { return nccl_net_parts(kNewest, MemoryKind::host); }
Result<HereEnd::Parts> nccl_net_newest_device() {
  return nccl_net_parts(kNewest, MemoryKind::device);
}

Result<HereEnd::Parts> nccl_net_staged_host() {
  return nccl_net_parts(kHostOnly, MemoryKind::host);
}
Result<HereEnd::Parts> nccl_net_staged_device() {
  return nccl_net_parts(kHostOnly, MemoryKind::device);
}

Result<HereEnd::Parts> nccl_net_exporter_host() {
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);  // NOLINT(concurrency-mt-unsafe)
  return nccl_net_parts("nccl/libnccl-net-linkspan.so", MemoryKind::host);
}

}  // namespace linkspan::test
