// LocalTransport: imports of peers' keys, and their end.
#include <algorithm>
#include <memory>
#include <vector>

#include "base/process.hpp"
#include "transport/local/endpoint.hpp"
#include "transport/local/local_transport.hpp"

namespace linkspan::transport::local {
namespace {

Status corrupt_import(const char* what) { return {Code::corrupt, Scope::request, what}; }

}  // namespace

bool LocalTransport::maps(const memory::RegionId& id) const {
  const base::MutexLock lock(mutex_);
  return imports_.maps(id);
}

void LocalTransport::report_closed(const memory::RegionId& id) {
  if (imports_.maps(id)) return;
  for (LocalEndpoint* endpoint : endpoints_)
    if (endpoint->peer_incarnation() == id.incarnation) endpoint->unmapped_here(id.serial);
}

bool LocalTransport::unmap(const memory::RegionId& id) {
  struct Closing {
    LocalTransport* transport;
    std::vector<ImportTable::Unmapped> all;
  };
  ImportTable::Imports used;  // released after the lock
  auto closing = std::make_unique<Closing>(Closing{this, {}});
  bool all = false;
  {
    const base::MutexLock lock(mutex_);
    const bool joined = std::ranges::any_of(endpoints_, [&](const LocalEndpoint* endpoint) {
      return endpoint->peer_incarnation() == id.incarnation && endpoint->is_joined(id.serial);
    });
    if (joined) return false;
    all = imports_.unmap(id, used, closing->all);
    ++copiers.epoch;
  }
  if (closing->all.empty()) return all;
  // Without the lock, because it may run here. A task that has a pointer alone allocates nothing.
  close([raw = closing.release()] {
    const std::unique_ptr<Closing> ours(raw);
    for (auto& [number, mappings] : ours->all) {
      mappings = {};
      const base::MutexLock closed(ours->transport->mutex_);
      if (const auto region = ours->transport->imports_.set_closed(number))
        ours->transport->report_closed(*region);
    }
  });
  return all;
}

void LocalTransport::unmap(const Mapping& mapping) {
  const std::shared_ptr<ImportedMemory> memory = static_cast<const LocalMapping&>(mapping).memory();
  // Two owners are the Mapping and `memory`; a window's kernels would be a third.
  if (memory.use_count() > 2) return;
  auto unmapped = memory->unmap();
  ++copiers.epoch;
  close([mappings = std::move(unmapped)]() mutable { mappings = {}; });
}

Result<std::unique_ptr<Mapping>> LocalTransport::import_key(RemoteKey key,
                                                            base::Deadline deadline) {
  auto memory = import_memory(key, deadline);
  if (!memory.ok()) return memory.status();
  return std::unique_ptr<Mapping>(std::make_unique<LocalMapping>(*std::move(memory)));
}

void LocalTransport::forget_import(std::uint64_t number) {
  const base::MutexLock lock(mutex_);
  report_closed(imports_.remove(number));
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
  if (remote.fds.size() != (key.handle.has_fd() ? 2u : 1u))
    return corrupt_import("the key came without its fds");
  auto liveness = mappings_.liveness_of(key.id.incarnation, remote.fds[0]);
  if (!liveness.ok()) return liveness.status();

  // Entered before liveness is checked: an owner that retracts after the check finds the import
  // when it asks us, and an earlier retract is seen by the check.
  const memory::RegionId id = key.id;
  const ImportBudget::Owner owner{remote.pid, remote.pid == 0 ? id.incarnation : 0};
  auto share = mappings_.budget().acquire(owner, {.imports = 1});
  if (!share.ok()) return share.status();
  struct Ending {  // made now, because at the end there may be no memory
    LocalTransport* transport;
    std::uint64_t number;
    std::unique_ptr<ImportedMemory> memory;
  };
  auto ending = std::make_unique<Ending>(
      Ending{this, 0, std::make_unique<ImportedMemory>(std::move(key), *liveness)});
  std::size_t gpus = 0;
  {
    const base::MutexLock lock(mutex_);
    ending->number = imports_.add(id, *std::move(share));
    gpus = gpu_copiers_.size();
  }
  const std::uint64_t number = ending->number;
  ImportedMemory* const made = ending->memory.get();
  const std::shared_ptr<ImportedMemory> memory(made, [raw = ending.release()](ImportedMemory*) {
    raw->transport->close([raw] {
      const std::unique_ptr<Ending> ours(raw);
      ours->memory.reset();
      ours->transport->forget_import(ours->number);
    });
  });
  {
    const base::MutexLock lock(mutex_);
    imports_.set_memory(number, memory);
  }
  if (!memory->alive())
    return Status(Code::not_found, Scope::request, "the peer has deregistered this region");

  Status status;
  if (same_process) memory->use_same_process();
  if (memory->key().kind == MemoryKind::device)
    status = map_device(*memory, remote.fds, deadline);
  else if (memory->key().handle.memfd && !same_process)
    status = mappings_.map_host(*memory, remote.fds[1], owner, deadline);
  if (status.code() == Code::corrupt || status.code() == Code::timed_out) return status;
  if (!status.ok()) memory->refuse(status.what());
  std::vector<const cuda::Device*> others;  // GPUs that came up meanwhile, and left this import out
  {
    const base::MutexLock lock(mutex_);
    imports_.set_opened(number);
    if (gpu_copiers_.size() != gpus)
      for (const auto& each : gpu_copiers_) others.push_back(each.first);
  }
  for (const cuda::Device* device : others) mappings_.map_on(*memory, *device, deadline);
  return memory;
}

Status LocalTransport::map_device(ImportedMemory& memory, std::span<base::Fd> fds,
                                  base::Deadline deadline) {
  const LocalKey& key = memory.key();
  if (options_.topology == nullptr)
    return {Code::unsupported, Scope::request, "no CUDA driver in this process"};
  if (!memory.mappable()) return {Code::unsupported, Scope::request, key.handle.why_none};
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
  if (!memory.same_process() && key.handle.has_fd())
    if (Status status = mappings_.map_range(memory, fds[1], *devices.front(), deadline);
        !status.ok())
      return status;
  Status first_failure;
  for (const cuda::Device* device : devices) {
    // A GPU that something else activated, such as a pinned registration, has no copier yet.
    const auto up = bring_up(device->info().uuid);
    Status status = up.status();
    if (status.ok() && memory.wants_view(*device))
      status = mappings_.add_view(memory, *device, deadline);
    if (status.code() == Code::corrupt) return status;
    if (!status.ok() && first_failure.ok()) first_failure = status;
    if (status.ok()) calibrate(*device, memory);
  }
  return memory.view(nullptr) ? Status() : first_failure;
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

}  // namespace linkspan::transport::local
