#include "transport/nccl_net/nccl_net_transport.hpp"

#include <algorithm>
#include <utility>

#include "base/pci.hpp"
#include "transport/address_check.hpp"
#include "transport/nccl_net/endpoint.hpp"
#include "transport/nccl_net/nic_affinity.hpp"

namespace linkspan::transport::nccl_net {
namespace {

/// Large enough that the cost of a message is small beside its bytes, small enough that several are
/// in flight; GPUDirect-TCPX takes no larger ones.
constexpr std::uint64_t kMaxMessage = std::uint64_t{4} << 20;
static_assert(kMaxMessage <= copy::Staging::kMaxBufferBytes);
constexpr std::uint64_t kUnpackAlignment = 4096;
constexpr Duration kConnect = std::chrono::seconds(10);  // of a queue, from its first use

}  // namespace

Result<std::unique_ptr<Transport>> NcclNetTransport::create(NcclNetOptions options) {
  if (options.plugin->devices().empty())
    return Status(Code::not_found, Scope::transport,
                  "network plugin " + options.plugin->name() + " has no device on this machine");
  return std::unique_ptr<Transport>(new NcclNetTransport(std::move(options)));
}

NcclNetTransport::NcclNetTransport(NcclNetOptions options)
    : options_(std::move(options)),
      capabilities_{.local_kinds = {MemoryKind::host, MemoryKind::pinned, MemoryKind::shared},
                    .initiator_reads = true,
                    .orders_streams = false,
                    .gpu_indices = false,
                    .leaves_host = true,
                    .max_batch_bytes = std::uint64_t{64} << 20,
                    .max_batch_blocks = 4096,  // the Channel's limit is 65536
                    .max_batch_pages = 4096,
                    .max_inflight = 64},
      max_message_(kMaxMessage),
      published_(options_.topology),
      staging_streams_(options_.topology) {
  const auto& nics = options_.plugin->devices();
  for (const Properties& nic : nics)
    max_message_ = std::min<std::uint64_t>(max_message_, nic.max_bytes);
  if (options_.topology == nullptr) return;
  for (const cuda::DeviceInfo& gpu : options_.topology->devices())
    nics_.emplace(gpu.uuid, nearest_nic(nics, base::pci_path_of(gpu.bus_id), gpu.ordinal));
  if (!nics_.empty())
    capabilities_.local_kinds = {MemoryKind::host, MemoryKind::pinned, MemoryKind::shared,
                                 MemoryKind::device};
}

int NcclNetTransport::nic(const GpuUuid& gpu) const noexcept {
  const auto found = nics_.find(gpu);
  return found == nics_.end() ? 0 : found->second;
}

QueueAttributes NcclNetTransport::queue_attributes(const cuda::Device* device) {
  return {.plugin = options_.plugin,
          .device = device,
          .nic = nic(device != nullptr ? device->info().uuid : GpuUuid{}),
          .connect_by = base::Deadline::in(kConnect),
          .staging = {.staging_streams = &staging_streams_,
                      .buffer_bytes = max_message_,
                      .ctas = options_.copy_ctas.value_or(~0U)},
          .topology = options_.topology,
          .unpack = options_.unpack};
}

Status NcclNetTransport::check_memory(const memory::Region::Facts& facts) const {
  if (!capabilities_.local_kinds.contains(facts.kind))
    return {Code::unsupported, Scope::request,
            "network plugin " + options_.plugin->name() + " takes no " +
                std::string(name_of(facts.kind)) + " memory"};
  if (facts.kind != MemoryKind::device) return {};
  const Properties& nic = device(facts.gpu);
  if (!stages(facts) && nic.device_type == abi::kDeviceUnpack && facts.part_of == 0 &&
      facts.address % kUnpackAlignment != 0)
    return {Code::invalid_argument, Scope::request,
            "GPU memory for network plugin " + options_.plugin->name() +
                " has to begin at a multiple of 4096 bytes: allocate 4096 more and register from "
                "there"};
  return {};
}

Result<memory::PublishedKey> NcclNetTransport::publish(const memory::Region& region) {
  const memory::Region::Facts& facts = region.facts();
  if (Status status = check_memory(facts); !status.ok()) return status;
  // Reserves one CUDA stream for each direction of a peer.
  if (stages(facts))
    if (Status status = staging_streams_.reserve(facts.gpu, 2); !status.ok()) return status;
  return published_.add(region);
}

Status NcclNetTransport::retract(const memory::Region& region, bool at_once) {
  Status status = published_.retract(region, at_once);
  if (status.code() == Code::busy) threads_.release();
  return status;
}

std::vector<CopyCount> NcclNetTransport::copies() const {
  return {{.copier = "nccl_net", .orders = orders_, .blocks = blocks_}};
}

std::vector<std::byte> NcclNetTransport::address() const {
  return encode(NcclNetAddress{.incarnation = options_.incarnation,
                               .max_message = max_message_,
                               .plugin = name_of(*options_.plugin)});
}

Result<std::unique_ptr<Endpoint>> NcclNetTransport::connect(std::span<const std::byte> address,
                                                            Channel& channel, base::Deadline) {
  auto peer = decode_address(address);
  if (!peer.ok()) return peer.status();
  if (Status status = check_address(channel, peer->incarnation); !status.ok()) return status;
  return std::unique_ptr<Endpoint>(
      std::make_unique<NcclNetEndpoint>(*this, *std::move(peer), channel));
}

}  // namespace linkspan::transport::nccl_net
