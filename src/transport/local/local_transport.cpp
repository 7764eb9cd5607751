#include "transport/local/local_transport.hpp"

#include <sys/stat.h>

#include <algorithm>

#include "base/process.hpp"
#include "transport/local/endpoint.hpp"
#include "transport/local/lending.hpp"

namespace linkspan::transport::local {
namespace {

// 8192 blocks and the cuts of those above 64 KiB make at most 16384 entries of the copy kernel.
// Where another than the kernel copies pages they are blocks, and 32768 fit a message to the peer.
constexpr Capabilities kCapabilities{
    .local_kinds = {MemoryKind::host, MemoryKind::pinned, MemoryKind::shared, MemoryKind::device},
    .initiator_reads = true,
    .orders_streams = true,
    .leaves_host = false,
    .max_batch_bytes = std::uint64_t{256} << 20,
    .max_batch_blocks = 8192,
    .max_batch_pages = 32768,
    .max_inflight = 256};

Status corrupt(const char* what) { return {Code::corrupt, Scope::request, what}; }

}  // namespace

Result<std::unique_ptr<Transport>> LocalTransport::create(const LocalOptions& options) {
  std::unique_ptr<LocalTransport> transport(new LocalTransport(options));
  auto leases = LeaseTable::create();
  if (!leases.ok()) return leases.status();
  transport->leases_ = *std::move(leases);
  auto cpu = copy::CpuCopier::create(options.cpu_threads);
  if (!cpu.ok()) return cpu.status();
  transport->cpu_ = *std::move(cpu);
  if (Status status = base::random_bytes(transport->proof_); !status.ok()) return status;
  return std::unique_ptr<Transport>(std::move(transport));
}

LocalTransport::~LocalTransport() {
  opener_.end();  // what it opens may have to be closed at once
  if (options_.topology != nullptr) options_.topology->closings()->drain();
}

void LocalTransport::close(std::function<void()> closing) {
  if (options_.topology != nullptr)
    options_.topology->closings()->run(std::move(closing));
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
  if (gpu_copier(*device) != nullptr) return device;
  auto copier = copy::GpuCopier::create(**device);
  if (!copier.ok()) return copier.status();
  std::vector<std::shared_ptr<ImportedMemory>> imported;
  {
    const base::MutexLock lock(mutex_);
    gpu_.emplace(*device, *std::move(copier));
    for (const auto& [raw, import] : imports_)
      if (auto memory = import.memory.lock()) imported.push_back(std::move(memory));
  }
  // What was there before this GPU. A failure costs speed, not the transfer, and explain() shows
  // it.
  const auto deadline = base::Deadline::after(base::Clock::steady(), std::chrono::seconds(10));
  if (options_.registry != nullptr) (void)options_.registry->pin_shared();
  for (const auto& memory : imported) {
    if (memory->host() != nullptr) (void)memory->host()->pin(**device);
    if (memory->wants_view(**device)) (void)add_view(*memory, **device, deadline);
  }
  return device;
}

Result<memory::PublishedKey> LocalTransport::publish(const memory::Region& region) {
  const memory::Region::Facts& facts = region.facts();
  if (!kCapabilities.local_kinds.contains(facts.kind))
    return Status(Code::unsupported, Scope::request,
                  std::string(name_of(facts.kind)) + " memory is not moved by the local transport");
  auto published = std::make_shared<Published>();
  published->region = &region;
  Key& key = published->key;
  key = {.id = facts.id,
         .process = base::this_process(),
         .lease_slot = 0,
         .kind = facts.kind,
         .peers = facts.peers,
         .bytes = facts.bytes,
         .address = facts.peers.exclusive ? 0 : facts.address,
         .gpu = facts.gpu,
         .allocation_offset = facts.address - facts.allocation,
         .ipc = std::nullopt,
         .has_memfd = false,
         .chunks = std::nullopt,
         .pool = std::nullopt,
         .why_not_mapped = {}};
  if (facts.kind == MemoryKind::device) {
    auto device = bring_up(facts.gpu);
    if (!device.ok()) return device.status();
    if (!facts.peers.exclusive)
      if (Status status = lend(**device, facts, key); !status.ok())
        key.why_not_mapped = "CUDA cannot export it: " + status.what();
  } else if (facts.kind == MemoryKind::shared && facts.memfd >= 0) {
    auto duplicate =
        base::Fd::from("fcntl(F_DUPFD_CLOEXEC)", ::fcntl(facts.memfd, F_DUPFD_CLOEXEC, 0));
    if (!duplicate.ok()) return duplicate.status();
    published->memfd = *std::move(duplicate);
    key.has_memfd = true;
  } else {
    key.why_not_mapped = "it is the private " + std::string(name_of(facts.kind)) +
                         " memory of its process: allocate_shared makes memory that peers can map";
  }
  if (facts.peers.exclusive) {
    key.has_memfd = false;
    key.why_not_mapped = "its owner registered it as exclusive";
  }
  if (options_.registry != nullptr) published->registration = options_.registry->find(facts.id);
  auto slot = leases_->grant(facts.id.serial);
  if (!slot.ok()) return slot.status();
  key.lease_slot = *slot;
  auto made = key_of(*published);
  if (!made.ok()) {
    leases_->revoke(*slot);
    return made;
  }
  const base::MutexLock lock(mutex_);
  entries_[facts.id.serial] = {std::move(published), false, false, {}};
  return made;
}

Result<memory::PublishedKey> LocalTransport::key_of(const Published& published) const {
  memory::PublishedKey out;
  out.bytes = encode(published.key);
  auto lease = leases_->fd().duplicate();
  if (!lease.ok()) return lease.status();
  out.fds.push_back(*std::move(lease));
  if (published.key.has_memfd) {
    auto memfd = published.memfd.duplicate();
    if (!memfd.ok()) return memfd.status();
    out.fds.push_back(*std::move(memfd));
  }
  if (published.key.chunks || published.key.pool)
    out.last_fd = [topology = options_.topology, kept = published.shared_from_this()] {
      return lent_fd(*topology, kept->region->facts(), kept->key);
    };
  out.bearer = published.key.ipc.has_value();
  return out;
}

Status LocalTransport::retract(const memory::Region& region, bool at_once) {
  const std::uint64_t serial = region.facts().id.serial;
  const base::MutexLock lock(mutex_);
  const auto found = entries_.find(serial);
  if (found == entries_.end())
    return {Code::not_found, Scope::request, "the region is not published"};
  Entry& entry = found->second;
  if (!entry.retracting) {
    entry.retracting = true;
    entry.at_once = at_once;
    leases_->revoke(entry.published->key.lease_slot);
    for (LocalEndpoint* endpoint : endpoints_)
      if (endpoint->tell_retract(serial, at_once)) entry.unacknowledged.insert(endpoint);
  } else if (at_once && !std::exchange(entry.at_once, true)) {
    for (LocalEndpoint* endpoint : endpoints_)
      if (entry.unacknowledged.contains(endpoint)) (void)endpoint->tell_retract(serial, true);
  }
  if (!entry.unacknowledged.empty()) {
    std::string names;
    for (const LocalEndpoint* endpoint : entry.unacknowledged)
      names += (names.empty() ? "" : ", ") + endpoint->peer_name();
    return {Code::busy, Scope::request, "still mapped by " + names};
  }
  if (entry.published->uses != 0)
    return {Code::busy, Scope::request, "a transfer for a peer still uses the region"};
  entries_.erase(found);
  return {};
}

Status LocalTransport::forget(const memory::Region& region) {
  const base::MutexLock lock(mutex_);
  const auto found = entries_.find(region.facts().id.serial);
  if (found == entries_.end())
    return {Code::not_found, Scope::request, "the region is not published"};
  Entry& entry = found->second;
  if (!std::exchange(entry.retracting, true)) leases_->revoke(entry.published->key.lease_slot);
  if (entry.published->uses != 0)
    return {Code::busy, Scope::request, "a transfer for a peer still uses the region"};
  entries_.erase(found);
  return {};
}

void LocalTransport::acknowledged(const LocalEndpoint& endpoint, std::uint64_t serial) {
  const base::MutexLock lock(mutex_);
  for (auto& [each, entry] : entries_)
    if (serial == 0 || each == serial) entry.unacknowledged.erase(&endpoint);
}

bool LocalTransport::maps(const memory::RegionId& id) const {
  const base::MutexLock lock(mutex_);
  return std::any_of(imports_.begin(), imports_.end(), [&](const auto& import) {
    return !import.second.closed && import.second.id.incarnation == id.incarnation &&
           import.second.id.serial == id.serial;
  });
}

void LocalTransport::let_go(const memory::RegionId& id) {
  std::vector<std::shared_ptr<ImportedMemory>> found;  // ends after the lock
  const base::MutexLock lock(mutex_);
  for (auto& [number, import] : imports_) {
    if (import.letting_go || import.id.incarnation != id.incarnation ||
        import.id.serial != id.serial)
      continue;
    found.push_back(import.memory.lock());
    const auto& memory = found.back();
    // Its user's Mapping and this one: a batch would have its own, and with a lease that has ended
    // none begins.
    if (memory == nullptr || memory.use_count() > 2 || memory->host() != nullptr) continue;
    import.letting_go = true;
    close([this, at = number, held = memory->let_go()]() mutable {
      held = {};
      const base::MutexLock closed(mutex_);
      if (const auto still = imports_.find(at); still != imports_.end())
        still->second.closed = true;
    });
  }
}

Result<std::unique_ptr<Mapping>> LocalTransport::import_key(RemoteKey key,
                                                            base::Deadline deadline) {
  auto memory = import_memory(key, deadline);
  if (!memory.ok()) return memory.status();
  return std::unique_ptr<Mapping>(std::make_unique<LocalMapping>(*std::move(memory)));
}

Result<std::shared_ptr<LeaseView>> LocalTransport::lease_of(std::uint64_t incarnation,
                                                            const base::Fd& fd) {
  struct stat facts {};
  if (::fstat(fd.get(), &facts) != 0) return base::Fd::from("fstat", -1).status();
  const auto soon = base::Deadline::after(base::Clock::steady(), std::chrono::seconds(1));
  return lease_views_.get({incarnation, {facts.st_dev, facts.st_ino}, -1}, soon,
                          [&] { return LeaseView::open(fd); });
}

void LocalTransport::forget_import(std::uint64_t number) {
  const base::MutexLock lock(mutex_);
  const auto entry = imports_.find(number);
  const auto count = imports_of_.find(entry->second.id.incarnation);
  if (--count->second == 0) imports_of_.erase(count);
  imports_.erase(entry);
}

Result<std::shared_ptr<ImportedMemory>> LocalTransport::import_memory(RemoteKey remote,
                                                                      base::Deadline deadline) {
  if (deadline.passed()) return Status(Code::timed_out, Scope::request, "import");
  auto decoded = decode_key(remote.bytes);
  if (!decoded.ok()) return decoded.status();
  Key& key = *decoded;
  if (remote.incarnation != 0 && key.id.incarnation != remote.incarnation)
    return corrupt("a key of another Engine's region");
  // Every peer knows who we are and may say that it is us: then its addresses would be ours.
  const bool same_process = remote.from_this_process && key.process == base::this_process();
  if (remote.fds.size() != (key.has_fd() ? 2u : 1u)) return corrupt("the key came without its fds");
  auto lease = lease_of(key.id.incarnation, remote.fds[0]);
  if (!lease.ok()) return lease.status();

  // Entered before the lease is looked at: an owner that retracts after that look sees the import
  // when it asks us, and one that retracted before is seen here.
  const memory::RegionId id = key.id;
  std::uint64_t number = 0;
  {
    const base::MutexLock lock(mutex_);
    if (const auto count = imports_of_.find(id.incarnation);
        count != imports_of_.end() && count->second >= options_.max_imports)
      return Status(Code::busy, Scope::request,
                    std::to_string(options_.max_imports) +
                        " regions of this peer are imported: let some go, then try again");
    ++imports_of_[id.incarnation];
    number = ++last_import_;
    imports_[number].id = id;
  }
  const std::shared_ptr<ImportedMemory> memory(new ImportedMemory(std::move(key), *lease),
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
    status = map_host(*memory, remote.fds[1], deadline);
  if (status.code() == Code::corrupt || status.code() == Code::timed_out) return status;
  if (!status.ok()) memory->refuse(status.what());
  return memory;
}

Status LocalTransport::map_host(ImportedMemory& memory, const base::Fd& memfd,
                                base::Deadline deadline) {
  const Key& key = memory.key();
  struct stat facts {};
  if (::fstat(memfd.get(), &facts) != 0) return base::Fd::from("fstat", -1).status();
  const memory::ImportKey which{key.id.incarnation, {facts.st_dev, facts.st_ino}, -1};
  const std::uint64_t needed = key.allocation_offset + key.bytes;  // decode_key saw that it fits
  auto host = host_mappings_.get(which, deadline, [&] { return HostMapping::map(memfd, needed); });
  if (!host.ok()) return host.status();
  if ((*host)->bytes() < needed) return corrupt("the key claims more than its memfd has");
  if (options_.topology != nullptr)
    for (const cuda::Device* device : options_.topology->all_active())
      if ((*host)->pin(*device).ok()) break;
  memory.use_host(*std::move(host));
  return {};
}

Status LocalTransport::map_device(ImportedMemory& memory, std::span<base::Fd> fds,
                                  base::Deadline deadline) {
  const Key& key = memory.key();
  if (options_.topology == nullptr)
    return {Code::unsupported, Scope::request, "no CUDA driver in this process"};
  if (memory.same_process() ? key.address == 0 : !key.mappable())
    return {Code::unsupported, Scope::request, key.why_not_mapped};
  std::vector<const cuda::Device*> devices = options_.topology->all_active();
  if (devices.empty() || memory.same_process()) {
    // Its own GPU if we see it; a GPU that is hidden here is reached from another one.
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
    // Up by another's hand, such as a pinned registration's, it has no copier of ours yet.
    const auto up = bring_up(device->info().uuid);
    Status status = up.status();
    if (status.ok() && memory.wants_view(*device)) status = add_view(memory, *device, deadline);
    if (status.code() == Code::corrupt) return status;
    if (!status.ok() && first_failure.ok()) first_failure = status;
  }
  return memory.view(nullptr) ? Status() : first_failure;
}

Status LocalTransport::add_view(ImportedMemory& memory, const cuda::Device& device,
                                base::Deadline deadline) {
  const Key& key = memory.key();
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
    return corrupt("the key claims more than its CUDA allocation has");
  memory.add_view({&device, (*opened)->base() + key.allocation_offset, *std::move(opened)});
  return {};
}

std::vector<CopyCount> LocalTransport::copies() const {
  std::vector<CopyCount> copies(copies_.begin(), copies_.end());
  for (std::size_t i = 0; i < copies.size(); ++i)
    copies[i].copier = name_of(static_cast<copy::Method>(i));
  return copies;
}

/// All of it at once, for whichever GPUs come up: the fds are here but now.
Status LocalTransport::map_range(ImportedMemory& memory, const base::Fd& fd,
                                 const cuda::Device& device, base::Deadline deadline) {
  const Key& key = memory.key();
  if (key.pool) {
    // Beside the buffer id the place in the pool, should a pool's memory have one id.
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
    return corrupt("the key claims more than its CUDA memory has");
  return {};
}

std::vector<std::byte> LocalTransport::address() const {
  return encode(Address{.incarnation = options_.incarnation,
                        .process = base::this_process(),
                        .proof_address = reinterpret_cast<std::uintptr_t>(proof_.data()),
                        .proof = proof_});
}

Result<std::unique_ptr<Endpoint>> LocalTransport::connect(std::span<const std::byte> address,
                                                          Channel& channel,
                                                          base::Deadline deadline) {
  auto peer = decode_address(address);
  if (!peer.ok()) return peer.status();
  if (const std::uint64_t known = channel.process().incarnation;
      known != 0 && known != peer->incarnation)
    return Status(Code::corrupt, Scope::peer, "an address of another Engine");
  unsigned lane = 0;
  {
    const base::MutexLock lock(mutex_);
    lane = next_lane_++;
  }
  auto endpoint = std::make_unique<LocalEndpoint>(*this, *peer, channel, lane, deadline);
  const base::MutexLock lock(mutex_);
  endpoints_.insert(endpoint.get());
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

void LocalTransport::remove(const LocalEndpoint& endpoint) {
  const base::MutexLock lock(mutex_);
  std::erase_if(endpoints_, [&](const LocalEndpoint* each) { return each == &endpoint; });
  for (auto& [serial, entry] : entries_) entry.unacknowledged.erase(&endpoint);
}

std::shared_ptr<Published> LocalTransport::published(std::uint64_t serial) const {
  const base::MutexLock lock(mutex_);
  const auto found = entries_.find(serial);
  if (found == entries_.end() || found->second.retracting) return nullptr;
  return found->second.published;
}

copy::GpuCopier* LocalTransport::gpu_copier(const cuda::Device* device) const {
  const base::MutexLock lock(mutex_);
  const auto found = gpu_.find(device);
  return found == gpu_.end() ? nullptr : found->second.get();
}

}  // namespace linkspan::transport::local
