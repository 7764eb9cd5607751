#include "transport/verbs/verbs_transport.hpp"

#include <algorithm>
#include <utility>

#include "transport/address_check.hpp"
#include "transport/verbs/verbs_endpoint.hpp"

namespace linkspan::transport::verbs {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kThreads = 4;  // of calls that take milliseconds, at most
constexpr Duration kEventsCheck = 10ms;
constexpr Duration kEndOfCalls = 5s;

}  // namespace

VerbsTransport::VerbsTransport(VerbsOptions options)
    : options_(std::move(options)),
      capabilities_{.local_kinds = {MemoryKind::host, MemoryKind::pinned, MemoryKind::shared},
                    .initiator_reads = true,
                    .orders_streams = false,
                    .gpu_indices = false,
                    .leaves_host = true,
                    .remote_only = true,
                    .max_batch_bytes = std::uint64_t{1} << 30,
                    .max_batch_blocks = 8192,
                    .max_batch_pages = 8192,
                    .max_inflight = 64},
      published_(options_.topology),
      executor_(base::kThreadNamed<"ls-verbs">, kThreads) {
  if (options_.topology != nullptr)
    capabilities_.local_kinds = {MemoryKind::host, MemoryKind::pinned, MemoryKind::shared,
                                 MemoryKind::device};
  address_.incarnation = options_.incarnation;
  for (const Rail& rail : options_.rails) {
    auto found = std::ranges::find(devices_, rail.device);
    if (found == devices_.end()) found = devices_.insert(found, rail.device);
    address_.rails.push_back({.device = static_cast<std::uint32_t>(found - devices_.begin()),
                              .gid = rail.gid,
                              .lid = rail.lid,
                              .link = rail.link,
                              .mtu = rail.mtu,
                              .name = rail.name()});
  }
}

VerbsTransport::~VerbsTransport() { (void)executor_.end(base::Deadline::in(kEndOfCalls)); }

Result<memory::PublishedKey> VerbsTransport::publish(const memory::Region& region) {
  const memory::Region::Facts& facts = region.facts();
  if (!capabilities_.local_kinds.contains(facts.kind))
    return Status(Code::unsupported, Scope::request,
                  "verbs takes no " + std::string(name_of(facts.kind)) + " memory");
  Result<const cuda::Device*> gpu = nullptr;
  if (facts.kind == MemoryKind::device) gpu = options_.topology->activate(facts.gpu);
  if (!gpu.ok()) return gpu.status();
  auto keys = MemoryKeys::create(devices_, facts, *gpu, options_.nearness_of);
  if (!keys.ok()) return keys.status();
  auto published = published_.add(region);
  if (!published.ok()) return published;
  const RegionUse use = published_.use(facts.id.serial);
  if (use.memory() == nullptr)
    return Status(Code::unreachable, Scope::request, "the region is being deregistered");
  use.memory()->registrations = 1;
  const base::MutexLock lock(mutex_);
  registered_[facts.id.serial] = {*std::move(keys), use.memory()};
  return published;
}

Status VerbsTransport::retract(const memory::Region& region, bool at_once) {
  const std::uint64_t serial = region.facts().id.serial;
  Status status = published_.retract(region, at_once);
  if (status.code() != Code::busy) return status;
  if (!accesses_.revoke(serial, at_once))
    return {Code::busy, Scope::request, "a peer has not returned its access to the region yet"};
  Registered ended;  // deregistered without the mutex
  {
    const base::MutexLock lock(mutex_);
    const auto found = registered_.find(serial);
    if (found == registered_.end() || found->second.region->uses != 0) return status;
    ended = std::move(found->second);
    registered_.erase(found);
  }
  ended.keys = nullptr;
  ended.region->registrations = 0;
  return published_.retract(region, at_once);
}

std::shared_ptr<const MemoryKeys> VerbsTransport::keys(std::uint64_t serial) const {
  const base::MutexLock lock(mutex_);
  const auto found = registered_.find(serial);
  return found == registered_.end() ? nullptr : found->second.keys;
}

std::vector<CopyCount> VerbsTransport::copies() const {
  return {{.copier = "verbs", .orders = orders_, .blocks = blocks_}};
}

void VerbsTransport::handle_events(base::Time now) noexcept {
  const base::Time::rep at = now.time_since_epoch().count();
  if (at < next_events_.load(std::memory_order_relaxed)) return;
  next_events_.store(at + kEventsCheck.count(), std::memory_order_relaxed);
  for (const auto& device : devices_) device->handle_events();
}

Result<std::unique_ptr<Endpoint>> VerbsTransport::connect(std::span<const std::byte> address,
                                                          Channel& channel,
                                                          base::Deadline deadline) {
  auto peer = decode_address(address);
  if (!peer.ok()) return peer.status();
  if (Status status = check_address(channel, peer->incarnation); !status.ok()) return status;
  return std::unique_ptr<Endpoint>(
      std::make_unique<VerbsEndpoint>(*this, *std::move(peer), channel, deadline));
}

}  // namespace linkspan::transport::verbs
