#include "transport/tcp/tcp_transport.hpp"

#include "transport/address_check.hpp"
#include "transport/tcp/address.hpp"
#include "transport/tcp/endpoint.hpp"
#include "transport/tcp/frame.hpp"

namespace linkspan::transport::tcp {

TcpTransport::TcpTransport(const TcpOptions& options)
    : options_(options),
      capabilities_{.local_kinds = {MemoryKind::host, MemoryKind::pinned, MemoryKind::shared},
                    .initiator_reads = true,
                    .orders_streams = false,
                    .gpu_indices = false,
                    .leaves_host = true,
                    .remote_only = true,
                    .checksums = true,
                    .max_batch_bytes = std::uint64_t{1} << 30,
                    .max_batch_blocks = kMaxSpans,
                    .max_batch_pages = kMaxSpans,
                    .max_inflight = 64},
      published_(options.topology),
      staging_streams_(options.topology),
      threads_(options.connections) {
  if (options_.topology != nullptr)
    capabilities_.local_kinds = {MemoryKind::host, MemoryKind::pinned, MemoryKind::shared,
                                 MemoryKind::device};
}

Result<memory::PublishedKey> TcpTransport::publish(const memory::Region& region) {
  const memory::Region::Facts& facts = region.facts();
  if (!capabilities_.local_kinds.contains(facts.kind))
    return Status(Code::unsupported, Scope::request,
                  "tcp takes no " + std::string(name_of(facts.kind)) + " memory");
  // Reserves one CUDA stream for each direction of each connection of a peer.
  if (facts.kind == MemoryKind::device)
    if (Status status = staging_streams_.reserve(facts.gpu, 2 * options_.connections); !status.ok())
      return status;
  return published_.add(region);
}

std::vector<CopyCount> TcpTransport::copies() const {
  return {{.copier = "tcp", .orders = orders_, .blocks = blocks_}};
}

std::vector<std::byte> TcpTransport::address() const {
  return encode(TcpTransportAddress{.incarnation = options_.incarnation,
                                    .connections = options_.connections,
                                    .chunk = kMaxChunk,
                                    .ordered = true});
}

Result<std::unique_ptr<Endpoint>> TcpTransport::connect(std::span<const std::byte> address,
                                                        Channel& channel, base::Deadline deadline) {
  auto peer = decode_address(address);
  if (!peer.ok()) return peer.status();
  if (Status status = check_address(channel, peer->incarnation); !status.ok()) return status;
  return std::unique_ptr<Endpoint>(std::make_unique<TcpEndpoint>(*this, *peer, channel, deadline));
}

}  // namespace linkspan::transport::tcp
