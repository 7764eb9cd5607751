// LocalTransport: imports of peers' keys, and their end.
#include <algorithm>

#include "base/process.hpp"
#include "base/sealed_memory.hpp"
#include "transport/local/endpoint.hpp"
#include "transport/local/exports.hpp"
#include "transport/local/local_transport.hpp"

namespace linkspan::transport::local {
namespace {

Status corrupt_import(const char* what) { return {Code::corrupt, Scope::request, what}; }

}  // namespace

bool LocalTransport::maps_any(const memory::RegionId& id) const {
  const auto numbers = imports_by_id_.find({id.incarnation, id.serial});
  if (numbers == imports_by_id_.end()) return false;
  for (const std::uint64_t number : numbers->second) {
    const auto import = imports_.find(number);
    if (import != imports_.end() && !import->second.closed) return true;
  }
  return false;
}

bool LocalTransport::maps(const memory::RegionId& id) const {
  const base::MutexLock lock(mutex_);
  return maps_any(id);
}

void LocalTransport::report_closed(const memory::RegionId& id) {
  if (maps_any(id)) return;
  for (LocalEndpoint* endpoint : endpoints_)
    if (endpoint->peer_incarnation() == id.incarnation) endpoint->unmapped_here(id.serial);
}

bool LocalTransport::unmap(const memory::RegionId& id) {
  std::vector<std::shared_ptr<ImportedMemory>> found;  // released after the lock
  bool all = true;
  const base::MutexLock lock(mutex_);
  const auto numbers = imports_by_id_.find({id.incarnation, id.serial});
  if (numbers == imports_by_id_.end()) return true;
  for (const std::uint64_t number : numbers->second) {
    ImportEntry& import = imports_[number];
    if (import.unmapping) continue;
    all &= !import.opening;
    if (import.opening) continue;
    found.push_back(import.memory.lock());
    const auto& memory = found.back();
    if (memory == nullptr || memory->host() != nullptr) continue;
    // Two owners are the user's Mapping and `found`; a batch would be a third. No batch begins on a
    // region that is not alive.
    if (memory.use_count() > 2) {
      all = false;
      continue;
    }
    import.unmapping = true;
    close([this, at = number, mappings = memory->unmap()]() mutable {
      mappings = {};
      const base::MutexLock closed(mutex_);
      if (const auto still = imports_.find(at); still != imports_.end()) {
        still->second.closed = true;
        report_closed(still->second.id);
      }
    });
  }
  return all;
}

void LocalTransport::unmap(const Mapping& mapping) {
  const std::shared_ptr<ImportedMemory> memory = static_cast<const LocalMapping&>(mapping).memory();
  // Two owners are the Mapping and `memory`; a window's kernels would be a third.
  if (memory.use_count() <= 2) close([mappings = memory->unmap()]() mutable { mappings = {}; });
}

Result<std::unique_ptr<Mapping>> LocalTransport::import_key(RemoteKey key,
                                                            base::Deadline deadline) {
  auto memory = import_memory(key, deadline);
  if (!memory.ok()) return memory.status();
  return std::unique_ptr<Mapping>(std::make_unique<LocalMapping>(*std::move(memory)));
}

Result<std::shared_ptr<RegionLivenessView>> LocalTransport::liveness_of(std::uint64_t incarnation,
                                                                        const base::Fd& fd) {
  const auto facts = base::sealed_memory(fd);
  if (!facts.ok()) return facts.status();
  const auto soon = base::Deadline::in(std::chrono::seconds(1));
  // One view for an Engine: a new one with each key would fill this process with mappings.
  auto view = liveness_views_.get({incarnation, {}, -1}, soon,
                                  [&] { return RegionLivenessView::open(fd); });
  if (view.ok() && (*view)->id() != facts->id)
    return corrupt_import("a key with another liveness table than the keys before it");
  return view;
}

void LocalTransport::forget_import(std::uint64_t number) {
  const base::MutexLock lock(mutex_);
  const auto entry = imports_.find(number);
  const memory::RegionId id = entry->second.id;
  const auto numbers = imports_by_id_.find({id.incarnation, id.serial});
  numbers->second.erase(number);
  if (numbers->second.empty()) imports_by_id_.erase(numbers);
  imports_.erase(entry);
  report_closed(id);
}

Result<std::shared_ptr<ImportedMemory>> LocalTransport::import_memory(RemoteKey remote,
                                                                      base::Deadline deadline) {
  if (deadline.passed()) return Status(Code::timed_out, Scope::request, "import");
  auto decoded = decode_key(remote.bytes);
  if (!decoded.ok()) return decoded.status();
  LocalKey& key = *decoded;
  if (remote.incarnation != 0 && key.id.incarnation != remote.incarnation)
    return corrupt_import("a key of another Engine's region");
  // Any peer knows our identity and may claim it; its addresses would then be taken for ours.
  const bool same_process = remote.from_this_process && key.process == base::this_process();
  if (remote.fds.size() != (key.has_fd() ? 2u : 1u))
    return corrupt_import("the key came without its fds");
  auto liveness = liveness_of(key.id.incarnation, remote.fds[0]);
  if (!liveness.ok()) return liveness.status();

  // Entered before liveness is checked: an owner that retracts after the check finds the import
  // when it asks us, and an earlier retract is seen by the check.
  const memory::RegionId id = key.id;
  const ImportBudget::Owner owner{remote.pid, remote.pid == 0 ? id.incarnation : 0};
  auto share = budget_.acquire(owner, {.imports = 1});
  if (!share.ok()) return share.status();
  std::uint64_t number = 0;
  {
    const base::MutexLock lock(mutex_);
    number = ++last_import_;
    imports_[number].id = id;
    imports_[number].share = *std::move(share);
    imports_by_id_[{id.incarnation, id.serial}].insert(number);
  }
  const std::shared_ptr<ImportedMemory> memory(new ImportedMemory(std::move(key), *liveness),
                                               [this, number](ImportedMemory* ending) {
                                                 close([this, number, ending] {
                                                   delete ending;
                                                   forget_import(number);
                                                 });
                                               });
  {
    const base::MutexLock lock(mutex_);
    imports_[number].memory = memory;
  }
  if (!memory->alive())
    return Status(Code::not_found, Scope::request, "the peer has deregistered this region");

  Status status;
  if (same_process) memory->use_same_process();
  if (memory->key().kind == MemoryKind::device)
    status = map_device(*memory, remote.fds, deadline);
  else if (memory->key().has_memfd && !same_process)
    status = map_host(*memory, remote.fds[1], owner, deadline);
  if (status.code() == Code::corrupt || status.code() == Code::timed_out) return status;
  if (!status.ok()) memory->refuse(status.what());
  const base::MutexLock lock(mutex_);
  imports_[number].opening = false;
  return memory;
}

Status LocalTransport::map_host(ImportedMemory& memory, const base::Fd& memfd,
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
  if ((*host)->bytes() < needed) return corrupt_import("the key claims more than its memfd has");
  if (options_.topology != nullptr)
    for (const cuda::Device* device : options_.topology->all_active())
      if ((*host)->pin(*device).ok()) break;
  memory.use_host(*std::move(host));
  return {};
}

Status LocalTransport::map_device(ImportedMemory& memory, std::span<base::Fd> fds,
                                  base::Deadline deadline) {
  const LocalKey& key = memory.key();
  if (options_.topology == nullptr)
    return {Code::unsupported, Scope::request, "no CUDA driver in this process"};
  if (memory.same_process() ? key.address == 0 : !key.mappable())
    return {Code::unsupported, Scope::request, key.why_not_mapped};
  std::vector<const cuda::Device*> devices = options_.topology->all_active();
  if (devices.empty() || memory.same_process()) {
    // The memory's own GPU if it is visible; a hidden GPU is reached from another one.
    const bool visible = options_.topology->find(key.gpu) != nullptr;
    if (!visible && options_.topology->devices().empty())
      return {Code::unsupported, Scope::request, "no GPU is visible in this process"};
    auto device = bring_up(visible ? key.gpu : options_.topology->devices().front().uuid);
    if (!device.ok()) return device.status();
    devices = options_.topology->all_active();
  }
  if (!memory.same_process() && key.has_fd())
    if (Status status = map_range(memory, fds[1], *devices.front(), deadline); !status.ok())
      return status;
  Status first_failure;
  for (const cuda::Device* device : devices) {
    // A GPU that something else activated, such as a pinned registration, has no copier yet.
    const auto up = bring_up(device->info().uuid);
    Status status = up.status();
    if (status.ok() && memory.wants_view(*device)) status = add_view(memory, *device, deadline);
    if (status.code() == Code::corrupt) return status;
    if (!status.ok() && first_failure.ok()) first_failure = status;
    if (status.ok()) calibrate(*device, memory);
  }
  return memory.view(nullptr) ? Status() : first_failure;
}

Status LocalTransport::add_view(ImportedMemory& memory, const cuda::Device& device,
                                base::Deadline deadline) {
  const LocalKey& key = memory.key();
  if (memory.same_process()) {
    if (Status status = cuda::allow_own(*options_.topology, device, key.address, key.bytes);
        !status.ok())
      return status;
    memory.add_view({&device, key.address, nullptr});
    return {};
  }
  if (key.chunks || key.pool) {
    const auto range = memory.range();
    if (range == nullptr) return {Code::unsupported, Scope::request, "not mapped"};
    if (Status status = range->allow(device); !status.ok()) return status;
    memory.add_view({&device, range->base() + key.allocation_offset, nullptr});
    return {};
  }
  const IpcKey which{{key.id.incarnation, {key.id.buffer, 0}, device.info().ordinal}, *key.ipc};
  auto opened =
      ipc_mappings_.get(which, deadline, [&]() -> Result<std::unique_ptr<cuda::IpcMapping>> {
        auto mapping = cuda::IpcMapping::open(device, *key.ipc);
        if (!mapping.ok()) return mapping.status();
        return std::make_unique<cuda::IpcMapping>(*std::move(mapping));
      });
  if (!opened.ok()) return opened.status();
  if (!memory::fits(key.allocation_offset, key.bytes, (*opened)->bytes()))
    return corrupt_import("the key claims more than its CUDA allocation has");
  memory.add_view({&device, (*opened)->base() + key.allocation_offset, *std::move(opened)});
  return {};
}

/// Measures on another thread, because it takes long. Uses IPC handles only, because closing one
/// waits for its readers.
void LocalTransport::calibrate(const cuda::Device& device, const ImportedMemory& memory) {
  const LocalKey& key = memory.key();
  const GpuCopiers* const ours = gpu_copiers(&device);
  if (ours == nullptr || ours->calibration == nullptr || key.gpu == device.info().uuid ||
      !key.peers.read || ours->usual->rates(copy::Link::peer) != nullptr)
    return;
  const auto view = memory.view(&device);
  if (!view || view->device != &device || view->opened == nullptr) return;
  off_the_lock([ours, view = *view, bytes = key.bytes] {
    ours->usual->set_rates(copy::Link::peer,
                           ours->calibration->rates_to(view.address, bytes, view.opened));
  });
}

/// Maps the whole range for all later GPUs, because the fds exist only during the import.
Status LocalTransport::map_range(ImportedMemory& memory, const base::Fd& fd,
                                 const cuda::Device& device, base::Deadline deadline) {
  const LocalKey& key = memory.key();
  if (key.pool) {
    // The place in the pool is part of the key, in case all memory of a pool has one buffer id.
    const memory::ImportKey which{
        key.id.incarnation, {key.id.buffer, key.address - key.allocation_offset}, -1};
    auto opened = ranges_.get(which, deadline,
                              [&] { return cuda::SharedRange::open(device, fd, *key.pool); });
    if (!opened.ok()) return opened.status();
    memory.use_range(*std::move(opened));
  } else {
    const memory::ImportKey which{key.id.incarnation, {key.id.buffer, key.chunks->id}, -1};
    auto opened = ranges_.get(which, deadline, [&] { return open_chunks(device, fd, key); });
    if (!opened.ok()) return opened.status();
    memory.use_range(*std::move(opened));
  }
  if (!memory::fits(key.allocation_offset, key.bytes, memory.range()->bytes()))
    return corrupt_import("the key claims more than its CUDA memory has");
  return {};
}

}  // namespace linkspan::transport::local
