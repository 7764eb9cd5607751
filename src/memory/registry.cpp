#include "memory/registry.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "cuda/topology.hpp"
#include "memory/host_backing.hpp"
#include "memory/page_access.hpp"
#include "memory/validate_allocation.hpp"

namespace linkspan::memory {
namespace {

std::string span_text(std::uint64_t address, std::uint64_t bytes) {
  std::array<char, 16> hex{};
  const char* end = std::to_chars(hex.data(), hex.data() + hex.size(), address, 16).ptr;
  return std::to_string(bytes) + " bytes at 0x" + std::string(std::as_const(hex).data(), end);
}

Status refused(Code code, std::string what, Where at = {}) {
  return {code, Scope::request, std::move(what), at};
}

/// Refuses host memory whose pages lack a right that peers are to have.
Status pages_permit(std::uint64_t address, std::uint64_t bytes, Permissions peers) {
  const PageAccess pages = page_access(address, bytes);
  if (peers.write && !pages.write)
    return refused(Code::invalid_argument,
                   span_text(address, bytes) + " are mapped " +
                       (pages.read ? "for reading only" : "without access") +
                       ", so peers cannot write them: register them with `write` of "
                       "RegionOptions::peers false (peers_write in C and Python), or map them "
                       "writable");
  if (peers.read && !pages.read)
    return refused(Code::invalid_argument,
                   span_text(address, bytes) +
                       " are mapped without the right to read them, so peers cannot: register them "
                       "with `read` of RegionOptions::peers false (peers_read in C and Python), or "
                       "map them readable");
  return {};
}

/// Returns what a peer that maps the region can access: for GPU and shared memory the whole
/// allocation.
std::pair<std::uint64_t, std::uint64_t> mappable_range(const Region::Facts& f) noexcept {
  const bool whole = f.kind == MemoryKind::device || f.kind == MemoryKind::shared;
  return whole ? std::pair(f.allocation, f.allocation_bytes) : std::pair(f.address, f.bytes);
}

/// Adds the chunks from the first on, as far as the region extends. The driver describes one chunk
/// for an address (fact: Chunks.ARangeIsWhatAnAddressTells). Stops before memory that is not a
/// chunk; the caller detects the gap.
Status walk_chunks(const cuda::Topology& topology, const cuda::PointerFacts& first,
                   Region::Facts& facts) {
  facts.chunks.push_back({first.bytes, first.buffer_id});
  const std::uint64_t end = facts.address + facts.bytes;
  while (facts.allocation + facts.allocation_bytes < end) {
    const std::uint64_t next = facts.allocation + facts.allocation_bytes;
    const auto asked =
        topology.query(reinterpret_cast<void*>(next));  // NOLINT(performance-no-int-to-ptr)
    if (!asked.ok()) return asked.status();
    if (asked->kind != MemoryKind::device || asked->layout != cuda::Layout::chunk ||
        asked->base != next || asked->gpu != facts.gpu)
      return {};
    facts.chunks.push_back({asked->bytes, asked->buffer_id});
    facts.allocation_bytes += asked->bytes;
  }
  return {};
}

}  // namespace

bool Registration::unpins() const noexcept {
  return backing_ != nullptr && !backing_->shared() && backing_->pinned();
}

bool Registration::pinned() const noexcept {
  const MemoryKind kind = region_->facts().kind;
  return kind == MemoryKind::device || kind == MemoryKind::pinned ||
         (backing_ != nullptr && backing_->pinned());
}

bool Registration::acquire() const noexcept {
  std::uint32_t users = users_.load();
  while ((users & kRetired) == 0)
    if (users_.compare_exchange_weak(users, users + 1)) return true;
  return false;
}

void Registration::release() const noexcept { --users_; }

bool Registration::retire() const noexcept {
  std::uint32_t none = 0;
  return users_.compare_exchange_strong(none, kRetired);
}

Registry::Registry(std::uint64_t incarnation, cuda::Topology* topology)
    : incarnation_(incarnation), topology_(topology) {}

Registry::~Registry() = default;

Result<std::shared_ptr<const Registration>> Registry::add(void* pointer, std::uint64_t bytes,
                                                          Permissions peers, bool pin) {
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(pointer);
  if (pointer == nullptr || bytes == 0 || !fits(address, bytes, ~std::uint64_t{0}))
    return refused(Code::invalid_argument, span_text(address, bytes) + " are no memory");

  Region::Facts facts;
  facts.peers = peers;
  facts.address = address;
  facts.bytes = bytes;
  facts.allocation = address;
  facts.allocation_bytes = bytes;
  if (topology_ != nullptr) {
    const Result<cuda::PointerFacts> asked = topology_->query(pointer);
    if (!asked.ok()) return asked.status();
    facts.kind = asked->kind;
    if (asked->kind == MemoryKind::managed)
      return refused(Code::unsupported,
                     span_text(address, bytes) +
                         " are CUDA managed memory, whose pages move between GPU and host: copy "
                         "them to memory of cudaMalloc or cudaHostAlloc and register that");
    if (asked->kind == MemoryKind::device) {
      facts.gpu = asked->gpu;
      facts.id.buffer = asked->buffer_id;
    }
    if (asked->bytes != 0) {
      facts.allocation = asked->base;
      facts.allocation_bytes = asked->bytes;
    }
    if (asked->layout == cuda::Layout::pool) facts.pages = PageSource::pool;
    if (asked->layout == cuda::Layout::chunk)
      if (Status walked = walk_chunks(*topology_, *asked, facts); !walked.ok()) return walked;
  }
  std::shared_ptr<HostBacking> backing;
  if (facts.kind != MemoryKind::device && (backing = backing_of(address)) != nullptr) {
    facts.kind = backing->shared() ? MemoryKind::shared : MemoryKind::pinned;
    facts.memfd = backing->memfd();
    facts.allocation = backing->address();
    facts.allocation_bytes = backing->bytes();
  }
  if (facts.kind != MemoryKind::device && facts.kind != MemoryKind::shared &&
      is_mapped(address, bytes))
    if (Status status = pages_permit(address, bytes, peers); !status.ok()) return status;
  const auto find_pages = [&] {
    if (!peers.exclusive && anonymous_.contain(address, bytes)) facts.pages = PageSource::kernel;
  };
  if (facts.kind != MemoryKind::host) {
    if (!fits(address - facts.allocation, bytes, facts.allocation_bytes))
      return refused(Code::invalid_argument,
                     span_text(address, bytes) + " leave their allocation of " +
                         span_text(facts.allocation, facts.allocation_bytes) +
                         ": register each allocation by itself");
    if (facts.kind == MemoryKind::pinned) find_pages();
    return insert(facts, std::move(backing));
  }

  if (!is_mapped(address, bytes))
    return refused(Code::invalid_argument,
                   span_text(address, bytes) + " are not all mapped in this process");
  if (topology_ != nullptr) {
    const Result<cuda::PointerFacts> last =
        topology_->query(static_cast<const std::byte*>(pointer) + bytes - 1);
    if (!last.ok()) return last.status();
    if (last->kind != MemoryKind::host)
      return refused(Code::invalid_argument,
                     span_text(address, bytes) + " begin in host memory and end in " +
                         std::string(name_of(last->kind)) + " memory: register each by itself");
  }
  if (pin) {
    const Result<const cuda::Device*> device = device_to_pin(true);
    if (!device.ok()) return device.status();
    if (*device == nullptr)
      return refused(Code::unsupported,
                     "memory is pinned for a GPU, and this process has none: leave `pin` away");
    backing = HostBacking::of_user(pointer, bytes);
    if (Status pinned = backing->pin(**device); !pinned.ok()) return pinned;
    facts.kind = MemoryKind::pinned;
  }
  find_pages();
  return insert(facts, std::move(backing));
}

Result<std::shared_ptr<const Registration>> Registry::add_private(std::uint64_t address,
                                                                  std::uint64_t bytes,
                                                                  MemoryKind kind,
                                                                  Permissions peers) {
  if (!fits(address, bytes, ~std::uint64_t{0}) || !is_mapped(address, bytes))
    return refused(Code::invalid_argument,
                   span_text(address, bytes) + " are not all mapped in this process");
  Region::Facts facts;
  facts.kind = kind;
  facts.peers = peers;
  facts.address = facts.allocation = address;
  facts.bytes = facts.allocation_bytes = bytes;
  return insert(facts, nullptr);
}

Result<std::shared_ptr<const Registration>> Registry::add_part(const Registration& whole,
                                                               std::uint64_t offset,
                                                               std::uint64_t bytes,
                                                               Permissions peers) {
  const Region::Facts& all = whole.region().facts();
  if (!fits(offset, bytes, all.bytes))
    return refused(Code::invalid_argument, span_text(all.address + offset, bytes) +
                                               " leave their region of " +
                                               span_text(all.address, all.bytes));
  Region::Facts facts;
  facts.id.buffer = all.id.buffer;
  facts.kind = all.kind;
  facts.peers = peers;
  facts.gpu = all.gpu;
  facts.address = facts.allocation = all.address + offset;
  facts.bytes = facts.allocation_bytes = bytes;
  facts.part_of = all.id.serial;
  return insert(facts, nullptr);
}

std::shared_ptr<const Registration> Registry::find(const RegionId& id) const {
  const base::MutexLock lock(mutex_);
  const RegistryEntry* entry = entry_of(id);
  return entry == nullptr ? nullptr : entry->registration;
}

bool Registry::any_exclusive(std::uint64_t address, std::uint64_t bytes,
                             std::uint64_t buffer) const {
  Region::Facts facts;
  facts.id.buffer = buffer;
  facts.address = address;
  facts.bytes = bytes;
  const base::MutexLock lock(mutex_);
  return find_overlapping(facts, true) != nullptr;
}

std::vector<std::shared_ptr<const Registration>> Registry::all() const {
  const base::MutexLock lock(mutex_);
  std::vector<std::shared_ptr<const Registration>> list;
  list.reserve(entries_.size());
  for (const auto& [serial, entry] : entries_) list.push_back(entry.registration);
  return list;
}

std::pair<std::vector<Registry::RegionSummary>, std::size_t> Registry::list(
    std::size_t most) const {
  const base::MutexLock lock(mutex_);
  std::pair<std::vector<RegionSummary>, std::size_t> found{{}, entries_.size()};
  for (const auto& [serial, entry] : entries_) {
    if (found.first.size() == most) break;
    const Registration& each = *entry.registration;
    found.first.push_back({each.region().facts(), entry.name, each.pinned(), each.users()});
  }
  return found;
}

Status Registry::remove(const RegionId& id) {
  RegistryEntry removed;  // destroyed after the unlock: it may unpin and unmap
  const base::MutexLock lock(mutex_);
  const RegistryEntry* entry = entry_of(id);
  if (entry == nullptr) return refused(Code::not_found, "no such region");
  if (!entry->registration->retire())
    return refused(Code::busy, std::to_string(entry->registration->users()) +
                                   " transfers still use the region: wait for them or cancel them");
  unpublish(entry->name);
  if (entry->registration->region().facts().peers.exclusive) --exclusive_;
  backed_.erase(id.serial);
  auto node = entries_.extract(id.serial);
  removed = std::move(node.mapped());
  return {};
}

Result<std::shared_ptr<const Registration>> Registry::insert(Region::Facts facts,
                                                             std::shared_ptr<HostBacking> backing) {
  const base::MutexLock lock(mutex_);
  const bool mappable = facts.kind == MemoryKind::device || facts.kind == MemoryKind::shared;
  if (const Registration* other =
          mappable ? find_overlapping(facts, !facts.peers.exclusive) : nullptr)
    return refused(Code::invalid_argument,
                   span_text(facts.address, facts.bytes) + " share memory with a region of " +
                       span_text(other->region().facts().address, other->region().bytes()) +
                       (facts.peers.exclusive
                            ? " that peers may map already, or that a message was sent from: "
                              "register what is exclusive first"
                            : " that is exclusive: peers could map both") +
                       ", and all regions of an allocation as exclusive or none");
  facts.id.incarnation = incarnation_;
  facts.id.serial = last_serial_ + 1;
  Result<std::unique_ptr<const Region>> region = Region::create(facts);
  if (!region.ok()) return region.status();
  auto registration = std::make_shared<const Registration>(*std::move(region), std::move(backing));
  decltype(entries_) made;
  made.emplace(last_serial_ + 1, RegistryEntry{registration, {}});
  if (registration->backing_ != nullptr) backed_.emplace(last_serial_ + 1, registration);
  entries_.merge(made);  // allocates nothing
  ++last_serial_;
  if (facts.peers.exclusive) ++exclusive_;
  return registration;
}

const Registration* Registry::find_overlapping(const Region::Facts& facts, bool exclusive) const {
  const auto [begin, bytes] = mappable_range(facts);
  if ((exclusive ? exclusive_ : entries_.size() - exclusive_) == 0) return nullptr;
  for (const auto& [serial, entry] : entries_) {
    const Region::Facts& there = entry.registration->region().facts();
    if (there.peers.exclusive != exclusive) continue;
    if (there.id.buffer != facts.id.buffer) continue;  // of freed memory
    const auto [first, size] = mappable_range(there);
    if (begin - first < size || first - begin < bytes) return entry.registration.get();
  }
  return nullptr;
}

const Registry::RegistryEntry* Registry::entry_of(const RegionId& id) const {
  const auto found = entries_.find(id.serial);
  if (found == entries_.end() || found->second.registration->id() != id) return nullptr;
  return &found->second;
}

}  // namespace linkspan::memory
