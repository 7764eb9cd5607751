#include "transport/local/exports.hpp"

#include "base/fd_bundle.hpp"
#include "memory/validate_allocation.hpp"

namespace linkspan::transport::local {
namespace {

Status corrupt_chunks(const char* what) { return {Code::corrupt, Scope::request, what}; }

/// Hashes all chunks into a cache key, because regions that overlap may have the same ends and
/// differ in between.
std::uint64_t id_of(const std::vector<memory::MappedChunk>& chunks) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, 64 bits at a time
  for (const memory::MappedChunk& chunk : chunks)
    for (const std::uint64_t number : {chunk.bytes, chunk.buffer})
      hash = (hash ^ number) * 0x100000001b3;
  return hash;
}

}  // namespace

Status export_memory(const cuda::Device& device, const memory::Region::Facts& facts,
                     LocalKey& key) {
  if (facts.pages == memory::PageSource::pool) {
    if (auto pool = cuda::export_pool(device, facts.allocation); !pool.ok()) return pool.status();
    auto pointer = cuda::export_pool_pointer(device, facts.allocation);
    if (!pointer.ok()) return pointer.status();
    key.handle.pool = *pointer;
    return {};
  }
  if (facts.chunks.empty()) {
    auto handle = cuda::export_ipc(device, facts.allocation);
    if (!handle.ok()) return handle.status();
    key.handle.ipc = *handle;
    return {};
  }
  if (facts.chunks.size() > base::FdBundle::kMax)
    return {Code::unsupported, Scope::request,
            "it consists of " + std::to_string(facts.chunks.size()) + " chunks, and " +
                std::to_string(base::FdBundle::kMax) +
                " of a region at most travel to a peer: register it in parts"};
  std::uint64_t address = facts.allocation;
  for (const memory::MappedChunk& chunk : facts.chunks) {
    if (auto fd = cuda::export_chunk(device, address); !fd.ok()) return fd.status();
    address += chunk.bytes;
  }
  key.handle.chunks = {static_cast<std::uint32_t>(facts.chunks.size()), facts.allocation_bytes,
                       id_of(facts.chunks)};
  return {};
}

Result<base::Fd> export_fd(const cuda::Topology& topology, const memory::Region::Facts& facts,
                           const LocalKey& key) {
  const cuda::Device* device = topology.active(facts.gpu);
  if (device == nullptr) return Status(Code::internal, Scope::request, "its GPU is not up");
  const auto still = [&](std::uint64_t address, std::uint64_t buffer) {
    return memory::validate_allocation(topology, address, buffer);
  };
  if (key.handle.pool) {
    if (Status status = still(facts.allocation, facts.id.buffer); !status.ok()) return status;
    return cuda::export_pool(*device, facts.allocation);
  }
  auto parcel = base::FdBundle::create();
  if (!parcel.ok()) return parcel.status();
  std::uint64_t address = facts.allocation;
  for (const memory::MappedChunk& chunk : facts.chunks) {
    if (Status status = still(address, chunk.buffer); !status.ok()) return status;
    auto fd = cuda::export_chunk(*device, address);
    if (!fd.ok()) return fd.status();
    if (Status status = parcel->put(*std::move(fd), chunk.bytes); !status.ok()) return status;
    address += chunk.bytes;
  }
  return parcel->seal();
}

Result<std::unique_ptr<cuda::SharedRange>> open_chunks(const cuda::Device& device,
                                                       const base::Fd& parcel,
                                                       const LocalKey& key) {
  auto range = cuda::SharedRange::reserve(device, key.handle.chunks->bytes);
  if (!range.ok()) return range.status();
  for (std::uint32_t left = key.handle.chunks->count; left != 0;) {
    auto batch = base::FdBundle::pop_batch(parcel);
    if (!batch.ok()) return batch.status();
    if (batch->empty() || batch->size() > left)
      return corrupt_chunks("the key came with another number of chunks");
    for (base::NumberedFd& chunk : *batch) {
      if (Status status = (*range)->add(chunk.fd, chunk.number); !status.ok()) return status;
      chunk.fd.trust();  // the driver has verified it
    }
    left -= static_cast<std::uint32_t>(batch->size());
  }
  if ((*range)->bytes() != key.handle.chunks->bytes)
    return corrupt_chunks("the chunks of the key are less than it claims");
  return range;
}

}  // namespace linkspan::transport::local
