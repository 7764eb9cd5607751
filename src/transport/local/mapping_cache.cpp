#include "transport/local/mapping_cache.hpp"

#include "base/sealed_memory.hpp"
#include "transport/local/exports.hpp"

namespace linkspan::transport::local {
namespace {

Status corrupt_key_of(const char* what) { return {Code::corrupt, Scope::request, what}; }

}  // namespace

Result<std::shared_ptr<RegionLivenessView>> MappingCache::liveness_of(std::uint64_t incarnation,
                                                                      const base::Fd& fd) {
  const auto facts = base::sealed_memory(fd);
  if (!facts.ok()) return facts.status();
  const auto soon = base::Deadline::in(std::chrono::seconds(1));
  // One view for an Engine: a new one with each key would fill this process with mappings.
  auto view = liveness_views_.get({incarnation, {}, -1}, soon,
                                  [&] { return RegionLivenessView::open(fd); });
  if (view.ok() && (*view)->id() != facts->id)
    return corrupt_key_of("a key with another liveness table than the keys before it");
  return view;
}

Status MappingCache::map_host(ImportedMemory& memory, const base::Fd& memfd,
                              const ImportBudget::Owner& owner, base::Deadline deadline) {
  const LocalKey& key = memory.key();
  const auto facts = base::sealed_memory(memfd);
  if (!facts.ok()) return facts.status();
  const memory::ImportKey which{key.id.incarnation, facts->id, -1};
  const std::uint64_t needed = key.allocation_offset + key.bytes;  // decode_key() checked the sum
  auto host = host_mappings_.get(which, deadline, [&]() -> Result<std::unique_ptr<HostMapping>> {
    auto share = budget_.acquire(owner, {.bytes = facts->bytes});
    if (!share.ok()) return share.status();
    return HostMapping::map(memfd, needed, *std::move(share));
  });
  if (!host.ok()) return host.status();
  if ((*host)->bytes() < needed) return corrupt_key_of("the key claims more than its memfd has");
  if (topology_ != nullptr)
    for (const cuda::Device* device : topology_->all_active())
      if ((*host)->pin(*device).ok()) break;
  memory.use_host(*std::move(host));
  return {};
}

void MappingCache::map_on(ImportedMemory& memory, const cuda::Device& device,
                          base::Deadline deadline) {
  if (memory.host() != nullptr) (void)memory.host()->pin(device);
  if (memory.wants_view(device)) (void)add_view(memory, device, deadline);
}

Status MappingCache::add_view(ImportedMemory& memory, const cuda::Device& device,
                              base::Deadline deadline) {
  const LocalKey& key = memory.key();
  if (memory.same_process()) {
    if (Status status = cuda::allow_own(*topology_, device, key.address, key.bytes); !status.ok())
      return status;
    memory.add_view({&device, key.address, nullptr});
    return {};
  }
  if (key.handle.chunks || key.handle.pool) {
    const auto range = memory.range();
    if (range == nullptr) return {Code::unsupported, Scope::request, "not mapped"};
    if (Status status = range->allow(device); !status.ok()) return status;
    memory.add_view({&device, range->base() + key.allocation_offset, nullptr});
    return {};
  }
  const IpcKey which{{key.id.incarnation, {key.id.buffer, 0}, device.info().ordinal},
                     *key.handle.ipc};
  auto opened =
      ipc_mappings_.get(which, deadline, [&]() -> Result<std::unique_ptr<cuda::IpcMapping>> {
        auto mapping = cuda::IpcMapping::open(device, *key.handle.ipc);
        if (!mapping.ok()) return mapping.status();
        return std::make_unique<cuda::IpcMapping>(*std::move(mapping));
      });
  if (!opened.ok()) return opened.status();
  if (!memory::fits(key.allocation_offset, key.bytes, (*opened)->bytes()))
    return corrupt_key_of("the key claims more than its CUDA allocation has");
  memory.add_view({&device, (*opened)->base() + key.allocation_offset, *std::move(opened)});
  return {};
}

Status MappingCache::map_range(ImportedMemory& memory, const base::Fd& fd,
                               const cuda::Device& device, base::Deadline deadline) {
  const LocalKey& key = memory.key();
  if (key.handle.pool) {
    // The place in the pool is part of the key, in case all memory of a pool has one buffer id.
    const memory::ImportKey which{
        key.id.incarnation, {key.id.buffer, key.address - key.allocation_offset}, -1};
    auto opened = ranges_.get(
        which, deadline, [&] { return cuda::SharedRange::open(device, fd, *key.handle.pool); });
    if (!opened.ok()) return opened.status();
    memory.use_range(*std::move(opened));
  } else {
    const memory::ImportKey which{key.id.incarnation, {key.id.buffer, key.handle.chunks->id}, -1};
    auto opened = ranges_.get(which, deadline, [&] { return open_chunks(device, fd, key); });
    if (!opened.ok()) return opened.status();
    memory.use_range(*std::move(opened));
  }
  if (!memory::fits(key.allocation_offset, key.bytes, memory.range()->bytes()))
    return corrupt_key_of("the key claims more than its CUDA memory has");
  return {};
}

}  // namespace linkspan::transport::local
