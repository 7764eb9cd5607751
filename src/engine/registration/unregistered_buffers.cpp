#include "engine/registration/unregistered_buffers.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "memory/page_access.hpp"

namespace linkspan::engine {
namespace {

using memory::fits;

Status refused(Code code, std::string what, Where at = {}) {
  return {code, Scope::request, std::move(what), at};
}

}  // namespace

Status TemporaryRegistration::release() {
  if (registration_ == nullptr) return {};
  if (one_shot_)
    for (const auto& transport : owner_->transports_)
      if (Status status = transport->forget(registration_->region()); status.code() == Code::busy)
        return status;
  registration_->release();
  if (one_shot_) (void)owner_->registry_.remove(registration_->id());
  registration_ = nullptr;
  if (whole_ != nullptr) whole_->release();
  whole_ = nullptr;
  return {};
}

Result<TemporaryRegistration> UnregisteredBuffers::acquire_buffer(const void* pointer,
                                                                  std::uint64_t bytes,
                                                                  bool peer_reads, bool by_wire) {
  auto temporary = acquire_region(pointer, bytes, peer_reads);
  if (!temporary.ok() || temporary->one_shot() || !by_wire) return temporary;
  return register_part(*std::move(temporary), bytes, peer_reads);
}

Result<TemporaryRegistration> UnregisteredBuffers::register_part(TemporaryRegistration temporary,
                                                                 std::uint64_t bytes,
                                                                 bool peer_reads) {
  const memory::Registration& whole = *temporary.registration();
  const Permissions peers{.read = peer_reads,
                          .write = !peer_reads && temporary.kind() == MemoryKind::device};
  auto made = registry_.add_part(whole, temporary.offset(), bytes, peers);
  auto part = made.ok() ? publish_one_shot(std::move(made), &publish_to_networks)
                        : Result<TemporaryRegistration>(made.status());
  if (!part.ok()) {
    (void)temporary.release();
    return part.status();
  }
  part->whole_ = std::move(temporary.registration_);
  return part;
}

Result<TemporaryRegistration> UnregisteredBuffers::acquire_region(const void* pointer,
                                                                  std::uint64_t bytes,
                                                                  bool peer_reads) {
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(pointer);
  if (pointer == nullptr || !fits(address, bytes, ~std::uint64_t{0}))
    return refused(Code::invalid_argument,
                   std::to_string(bytes) + " bytes at such an address are no memory");
  cuda::PointerFacts facts;
  if (topology_ != nullptr) {
    auto asked = topology_->identify(pointer);
    if (!asked.ok()) return asked.status();
    facts = *asked;
  }
  if (facts.kind == MemoryKind::managed)
    return refused(Code::unsupported,
                   "CUDA managed memory, whose pages move between GPU and host: copy it to memory "
                   "of cudaMalloc or cudaHostAlloc");
  // No peer maps it, so it is registered for the message like private memory. It is not cached,
  // because that would prevent another registration of it.
  const bool on_gpu = facts.kind == MemoryKind::device;
  if (registry_.any_exclusive(address, bytes, on_gpu ? facts.buffer_id : 0))
    return register_exclusive(pointer, bytes, facts.kind, peer_reads);
  if (facts.kind == MemoryKind::device) return register_allocation(pointer, bytes, facts.buffer_id);
  if (auto shared = registry_.find_shared(address, bytes); shared && shared->acquire()) {
    TemporaryRegistration temporary;
    temporary.owner_ = this;
    temporary.offset_ = address - shared->region().facts().address;
    temporary.registration_ = std::move(shared);
    return temporary;
  }
  if (facts.buffer_id != 0) return register_allocation(pointer, bytes, facts.buffer_id);
  return register_one_shot(address, bytes, facts.kind, peer_reads);
}

Result<TemporaryRegistration> UnregisteredBuffers::register_one_shot(std::uint64_t address,
                                                                     std::uint64_t bytes,
                                                                     MemoryKind kind,
                                                                     bool peer_reads) {
  return publish_one_shot(registry_.add_private(address, bytes, kind, {.read = peer_reads}),
                          &publish_everywhere);
}

Result<TemporaryRegistration> UnregisteredBuffers::register_exclusive(const void* pointer,
                                                                      std::uint64_t bytes,
                                                                      MemoryKind kind,
                                                                      bool peer_reads) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const bool writable = kind == MemoryKind::device || memory::page_access(address, bytes).write;
  const Permissions by_us{.read = peer_reads, .write = !peer_reads && writable, .exclusive = true};
  return publish_one_shot(registry_.add(const_cast<void*>(pointer), bytes, by_us, false),
                          &publish_everywhere);
}

/// Publishes a region that was registered for the one message.
Result<TemporaryRegistration> UnregisteredBuffers::publish_one_shot(
    Result<std::shared_ptr<const memory::Registration>> made, Publishing* publish) {
  if (!made.ok()) return made.status();
  auto keys = publish(transports_, (*made)->region());
  if (!keys.ok() || !(*made)->acquire()) {
    (void)registry_.remove((*made)->id());
    return keys.status();
  }
  TemporaryRegistration temporary;
  temporary.owner_ = this;
  temporary.registration_ = *std::move(made);
  temporary.keys_ = *std::move(keys);
  temporary.one_shot_ = true;
  return temporary;
}

Result<TemporaryRegistration> UnregisteredBuffers::find_cached(std::uint64_t address,
                                                               std::uint64_t bytes,
                                                               std::uint64_t buffer) {
  TemporaryRegistration temporary;
  {
    const base::MutexLock lock(mutex_);
    const auto above = cached_.upper_bound(address);
    if (above == cached_.begin()) return TemporaryRegistration();
    CachedAllocation& cached = std::prev(above)->second;
    const memory::Region::Facts& facts = cached.registration->region().facts();
    const bool chunks = !facts.chunks.empty();
    if ((!chunks && cached.buffer != buffer) || address - facts.address >= facts.bytes)
      return TemporaryRegistration();
    if (!fits(address - facts.address, bytes, facts.bytes)) {
      if (chunks) return TemporaryRegistration();  // more of them may follow
      return refused(Code::invalid_argument, std::to_string(bytes) +
                                                 " bytes leave their allocation of " +
                                                 std::to_string(facts.bytes));
    }
    if (!cached.registration->acquire()) return TemporaryRegistration();
    cached.used = ++uses_;
    temporary.owner_ = this;
    temporary.registration_ = cached.registration;
    temporary.keys_ = cached.keys;
    temporary.offset_ = address - facts.address;
  }
  if (has_same_chunks(temporary.registration_->region().facts(), address, bytes, buffer))
    return temporary;
  temporary.registration_->release();
  return TemporaryRegistration();
}

/// Returns whether the chunks are still the same: any may have been unmapped and replaced. Costs
/// one query for each chunk after the first.
bool UnregisteredBuffers::has_same_chunks(const memory::Region::Facts& facts, std::uint64_t address,
                                          std::uint64_t bytes, std::uint64_t buffer) const {
  std::uint64_t begin = facts.allocation;
  for (const memory::MappedChunk& chunk : facts.chunks) {
    const std::uint64_t end = begin + chunk.bytes;
    if (begin <= address && address < end) {
      if (chunk.buffer != buffer) return false;
    } else if (address < begin && begin - address < bytes) {
      const auto now =
          topology_->identify(reinterpret_cast<void*>(begin));  // NOLINT(*-no-int-to-ptr)
      if (!now.ok() || now->buffer_id != chunk.buffer) return false;
    }
    begin = end;
  }
  return true;
}

Result<TemporaryRegistration> UnregisteredBuffers::register_allocation(const void* pointer,
                                                                       std::uint64_t bytes,
                                                                       std::uint64_t buffer) {
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(pointer);
  auto found = find_cached(address, bytes, buffer);
  if (!found.ok() || found->registration() != nullptr) return found;
  const base::MutexLock one_at_a_time(registration_mutex_);
  found = find_cached(address, bytes, buffer);
  if (!found.ok() || found->registration() != nullptr) return found;

  auto whole = topology_->query(pointer);
  if (!whole.ok()) return whole.status();
  if (whole->layout == cuda::Layout::chunk && !fits(address - whole->base, bytes, whole->bytes)) {
    auto last = topology_->query(static_cast<const std::byte*>(pointer) + bytes - 1);
    if (!last.ok()) return last.status();
    if (last->base > whole->base) whole->bytes = last->base + last->bytes - whole->base;
  }
  make_room(whole->base, whole->bytes);
  void* const base = reinterpret_cast<void*>(whole->base);  // NOLINT(performance-no-int-to-ptr)
  auto made = registry_.add(base, whole->bytes, {.read = true, .write = true}, false);
  if (!made.ok()) return made.status();
  auto keys = publish_everywhere(transports_, (*made)->region());
  if (!keys.ok()) {
    (void)registry_.remove((*made)->id());
    return keys.status();
  }
  {
    const base::MutexLock lock(mutex_);
    cached_[whole->base] = {buffer, *std::move(made), *std::move(keys), 0};
  }
  auto temporary = find_cached(address, bytes, buffer);
  if (temporary.ok() && temporary->registration() == nullptr)
    return refused(Code::invalid_argument, std::to_string(bytes) +
                                               " bytes leave their allocation, or it was unmapped "
                                               "meanwhile");
  return temporary;
}

/// Removes cached allocations that overlap the new one, which are stale, and the least recently
/// used beyond kMaxCached.
void UnregisteredBuffers::make_room(std::uint64_t begin, std::uint64_t bytes) {
  {
    const base::MutexLock lock(mutex_);
    const auto drop = [&](auto entry) LINKSPAN_TSA(no_thread_safety_analysis) {
      retiring_.push_back(std::move(entry->second.registration));
      return cached_.erase(entry);
    };
    for (auto entry = cached_.begin(); entry != cached_.end();) {
      const std::uint64_t there = entry->second.registration->region().bytes();
      const bool stale = entry->first < begin + bytes && begin < entry->first + there;
      entry = stale ? drop(entry) : std::next(entry);
    }
    while (cached_.size() >= kMaxCached) {
      auto oldest = cached_.end();
      for (auto entry = cached_.begin(); entry != cached_.end(); ++entry)
        if (entry->second.registration->users() == 0 &&
            (oldest == cached_.end() || entry->second.used < oldest->second.used))
          oldest = entry;
      if (oldest == cached_.end()) break;  // all are in use, and are removed later
      drop(oldest);
    }
  }
  std::erase_if(retiring_, [&](const auto& registration) {
    return retract_everywhere(transports_, registration->region(), false).code() != Code::busy &&
           registry_.remove(registration->id()).code() != Code::busy;
  });
}

}  // namespace linkspan::engine
