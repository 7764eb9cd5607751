#include "transport/local/local_transport.hpp"

#include <algorithm>

#include "base/process.hpp"
#include "transport/address_check.hpp"
#include "transport/local/endpoint.hpp"
#include "transport/local/exports.hpp"

namespace linkspan::transport::local {
namespace {

// Each batch costs a completion flag, 4 us of a link between GPUs. So batches are as large as the
// copy kernel's list allows for their blocks and cuts, or for their pages; larger lists of pages
// are no faster (one H200, 100,000 pages of 256 B: 0.85, 0.90 and 0.88 of bare with 32768, 65536
// and 131072 in a batch).
constexpr Capabilities kCapabilities{
    .local_kinds = {MemoryKind::host, MemoryKind::pinned, MemoryKind::shared, MemoryKind::device},
    .initiator_reads = true,
    .orders_streams = true,
    .gpu_indices = true,
    .leaves_host = false,
    .max_batch_bytes = std::uint64_t{512} << 20,
    .max_batch_blocks = 8192,
    .max_batch_pages = 65536,
    .max_inflight = 256};
static_assert(kCapabilities.max_batch_blocks +
                      kCapabilities.max_batch_bytes / copy::GpuCopier::kListBytes <=
                  copy::GpuCopier::kListEntries &&
              kCapabilities.max_batch_pages <= copy::GpuCopier::kPages);

}  // namespace

Result<std::unique_ptr<Transport>> LocalTransport::create(const LocalOptions& options) {
  auto liveness = RegionLivenessTable::create();
  if (!liveness.ok()) return liveness.status();
  auto cpu = copy::CpuCopier::create(options.cpu_threads, options.staging);
  if (!cpu.ok()) return cpu.status();
  std::unique_ptr<LocalTransport> transport(
      new LocalTransport(options, *std::move(liveness), *std::move(cpu)));
  if (Status status = base::random_bytes(transport->proof_); !status.ok()) return status;
  return std::unique_ptr<Transport>(std::move(transport));
}

LocalTransport::~LocalTransport() {
  opener_.end();  // its last imports may have to be unmapped
  if (options_.topology != nullptr) options_.topology->destroyer()->drain();
}

void LocalTransport::close(std::function<void()> closing) {
  if (options_.topology != nullptr)
    options_.topology->destroyer()->run(std::move(closing));
  else
    opener_.run(std::move(closing));
}

const Capabilities& LocalTransport::capabilities() const noexcept { return kCapabilities; }

Result<const cuda::Device*> LocalTransport::bring_up(const GpuUuid& gpu) {
  if (options_.topology == nullptr)
    return Status(Code::unsupported, Scope::transport, "no CUDA driver in this process");
  const base::MutexLock one_at_a_time(bringing_up_);
  auto device = options_.topology->activate(gpu);
  if (!device.ok()) return device;
  if (gpu_copiers(*device) != nullptr) return device;
  auto copier = copy::GpuCopier::create(**device, {.ctas = options_.copy_ctas});
  if (!copier.ok()) return copier.status();
  std::unique_ptr<copy::ResidentCopier> resident;
  if ((*copier)->has_kernel()) {
    auto made = copy::ResidentCopier::create(**device);
    if (!made.ok()) return made.status();
    resident = *std::move(made);
  }
  std::unique_ptr<copy::Calibration> calibration;
  // If this fails, the built-in rates are used.
  if (options_.calibrate && (*copier)->has_kernel())
    if (auto made = copy::Calibration::create(**device, (*copier)->ctas()); made.ok())
      calibration = *std::move(made);
  if (Status status = copiers.cpu->serve(**device); !status.ok()) return status;
  auto slots = PinnedSlots::create(*options_.topology, **device);  // without: slower, no error
  (*copier)->set_relay(copy::Relay::create(*options_.topology, **device, options_.relay_gpus));
  ImportTable::Imports imported;
  {
    const base::MutexLock lock(mutex_);
    gpu_copiers_[*device] = {*std::move(copier), std::move(resident), std::move(calibration),
                             slots.ok() ? *std::move(slots) : nullptr};
    imported = imports_.opened();
  }
  ++copiers.epoch;
  if (const GpuCopiers* const ours = gpu_copiers(*device); ours->calibration != nullptr)
    off_the_lock([ours] {
      for (const copy::Link link : {copy::Link::host, copy::Link::same_gpu})
        ours->usual->set_rates(link, ours->calibration->rates(link));
    });
  // Maps earlier imports on this GPU; those that a thread is opening do it themselves.
  const auto deadline = base::Deadline::in(std::chrono::seconds(10));
  if (options_.registry != nullptr) (void)options_.registry->pin_shared();
  for (const auto& memory : imported) mappings_.map_on(*memory, **device, deadline);
  ++copiers.epoch;
  return device;
}

Result<memory::PublishedKey> LocalTransport::publish(const memory::Region& region) {
  const memory::Region::Facts& facts = region.facts();
  if (!kCapabilities.local_kinds.contains(facts.kind))
    return Status(Code::unsupported, Scope::request,
                  std::string(name_of(facts.kind)) + " memory is not moved by the local transport");
  auto published = std::make_shared<PublishedRegion>();
  published->region = &region;
  LocalKey& key = published->key;
  key = {.id = facts.id,
         .process = base::this_process(),
         .liveness_index = 0,
         .kind = facts.kind,
         .peers = facts.peers,
         .bytes = facts.bytes,
         .address = facts.peers.exclusive ? 0 : facts.address,
         .anonymous = facts.pages == memory::PageSource::kernel,
         .gpu = facts.gpu,
         .allocation_offset = facts.address - facts.allocation,
         .handle = {}};
  if (facts.kind == MemoryKind::device) {
    auto device = bring_up(facts.gpu);
    if (!device.ok()) return device.status();
    if (!facts.peers.exclusive)
      if (Status status = export_memory(**device, facts, key); !status.ok())
        key.handle.why_none = "CUDA cannot export it: " + status.what();
  } else if (facts.kind == MemoryKind::shared && facts.memfd != nullptr) {
    key.handle.memfd = true;
  } else {
    key.handle.why_none = "it is the private " + std::string(name_of(facts.kind)) +
                          " memory of its process: allocate_shared makes memory that peers can map";
  }
  if (facts.peers.exclusive) {
    key.handle.memfd = false;
    key.handle.why_none = "its owner registered it as exclusive";
  }
  if (options_.registry != nullptr) published->registration = options_.registry->find(facts.id);
  {
    const base::MutexLock lock(mutex_);
    return published_.add(published, options_.topology);
  }
}

Status LocalTransport::retract(const memory::Region& region, bool revoke_immediately) {
  const base::MutexLock lock(mutex_);
  Status status = published_.retract(region.facts().id.serial, revoke_immediately, endpoints_);
  ++copiers.epoch;
  return status;
}

Status LocalTransport::forget(const memory::Region& region) {
  const base::MutexLock lock(mutex_);
  Status status = published_.forget(region.facts().id.serial);
  ++copiers.epoch;
  return status;
}

void LocalTransport::acknowledged(const LocalEndpoint& endpoint, std::uint64_t serial) {
  const base::MutexLock lock(mutex_);
  published_.acknowledge(endpoint, serial);
}

std::vector<CopyCount> SharedCopiers::counts() const {
  const base::MutexLock lock(mutex);
  std::vector<CopyCount> counts(counts_.begin(), counts_.end());
  for (std::size_t i = 0; i < counts.size(); ++i)
    counts[i].copier = name_of(static_cast<copy::Method>(i));
  return counts;
}

std::vector<std::byte> LocalTransport::address() const {
  return encode(LocalAddress{.incarnation = options_.incarnation,
                             .process = base::this_process(),
                             .proof_address = reinterpret_cast<std::uintptr_t>(proof_.data()),
                             .proof = proof_});
}

Result<std::unique_ptr<Endpoint>> LocalTransport::connect(std::span<const std::byte> address,
                                                          Channel& channel,
                                                          base::Deadline deadline) {
  auto peer = decode_address(address);
  if (!peer.ok()) return peer.status();
  if (Status status = check_address(channel, peer->incarnation); !status.ok()) return status;
  unsigned copy_queue_index = 0;
  {
    const base::MutexLock lock(mutex_);
    copy_queue_index = next_copy_queue_index_++;
  }
  auto endpoint =
      std::make_unique<LocalEndpoint>(*this, *peer, channel, copy_queue_index, deadline);
  const base::MutexLock lock(mutex_);
  endpoints_.insert(endpoint.get());
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

void LocalTransport::remove(const LocalEndpoint& endpoint) {
  const base::MutexLock lock(mutex_);
  std::erase_if(endpoints_, [&](const LocalEndpoint* each) { return each == &endpoint; });
  published_.acknowledge(endpoint, 0);
}

std::shared_ptr<PublishedRegion> LocalTransport::published(std::uint64_t serial) const {
  const base::MutexLock lock(mutex_);
  return published_.find(serial);
}

const GpuCopiers* LocalTransport::gpu_copiers(const cuda::Device* device) const {
  const base::MutexLock lock(mutex_);
  const auto found = gpu_copiers_.find(device);
  return found == gpu_copiers_.end() ? nullptr : &found->second;
}

LocalPath LocalTransport::find_path(const PublishedRegion& local,
                                    const ImportedMemory& remote) const {
  const LocalKey& key = remote.key();
  LocalPath path{.kind = {.mapped = remote.mapped(),
                          .local = local.key.kind,
                          .remote = key.kind,
                          .local_dma = local.dma(),
                          .remote_dma = remote.host_dma(),
                          .local_gpu = local.key.gpu,
                          .remote_gpu = key.gpu},
                 .local_address = local.region->facts().address,
                 .remote_address = remote.host_address(),
                 .liveness = remote.liveness(),
                 .owner = key.id.incarnation,
                 .permissions = key.peers,
                 .local = {}};
  const cuda::Device*& device = path.kind.device;
  if (on_gpu(local.key.kind)) device = options_.topology->active(local.key.gpu);
  if (on_gpu(key.kind)) {
    const auto view = remote.view(device);
    if (view) device = view->device;
    path.remote_address = view ? view->address : 0;
  }
  if (device != nullptr) path.copiers = gpu_copiers(device);
  return path;
}

bool LocalTransport::update(LocalPath& path, const memory::Region& local,
                            const ImportedMemory& remote) const {
  const std::uint64_t epoch =
      copiers.epoch;  // before the look-ups, so that a change meanwhile shows
  if (path.epoch == epoch && path.region == &local) return true;
  const auto found = published(local.facts().id.serial);
  if (found == nullptr || found->region != &local) return false;  // a region of another Engine
  path = find_path(*found, remote);
  path.region = &local;
  path.local = found;
  path.epoch = epoch;
  return true;
}

Result<std::unique_ptr<KeptPages>> LocalTransport::keep_pages(const memory::Region& local,
                                                              const Mapping& remote,
                                                              const Pages& pages) {
  std::unique_ptr<KeptPages> kept;
  const auto ours = published(local.facts().id.serial);
  if (ours == nullptr || pages.local_index.empty()) return kept;
  const LocalPath path = find_path(*ours, *static_cast<const LocalMapping&>(remote).memory());
  if (path.kind.mapped == Mapped::nothing || path.copiers == nullptr ||
      !path.copiers->usual->has_kernel())
    return kept;
  const auto scope = path.kind.device->enter();
  if (!scope.ok()) return scope.status();
  auto memory = cuda::PinnedBuffer::create(
      *scope, pages.local_index.size_bytes() + pages.remote_index.size_bytes());
  if (!memory.ok()) return memory.status();
  auto* const index = reinterpret_cast<std::uint32_t*>(memory->data());
  std::ranges::copy(pages.remote_index, std::ranges::copy(pages.local_index, index).out);
  kept = std::make_unique<PinnedPages>(
      cuda::DeferredDestroyer::end_by(options_.topology->destroyer(),
                                      std::make_unique<cuda::PinnedBuffer>(*std::move(memory))),
      pages.local_index.size());
  return kept;
}

Result<KernelView> LocalTransport::reach(const Mapping& remote, const GpuUuid& gpu) const {
  const auto memory = static_cast<const LocalMapping&>(remote).memory();
  const auto no = [](std::string why) {
    return Status(Code::unreachable, Scope::peer, std::move(why));
  };
  if (memory->mapped() == Mapped::nothing) return no(memory->why_not_mapped());
  const bool by_cpu = gpu == GpuUuid{};
  if (memory->key().kind != MemoryKind::device) {
    if (by_cpu || memory->host_dma()) return KernelView{memory->host_address(), memory, by_cpu};
    return no("the peer's memory is not pinned");
  }
  if (by_cpu) return no("it is memory of a GPU");
  const auto view = memory->view(options_.topology->active(gpu));
  if (!view || view->device->info().uuid != gpu) return no("that GPU does not map it");
  const cuda::DeviceInfo* const owner = options_.topology->find(memory->key().gpu);
  // The driver does not tell of a GPU that this process does not see.
  const bool atomics = owner != nullptr && cuda::has_native_atomics(*view->device, *owner);
  return KernelView{view->address, memory, atomics};
}

}  // namespace linkspan::transport::local
