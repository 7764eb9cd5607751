#include "engine/unregistered_buffers.hpp"

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
  if (fleeting_)
    for (const auto& transport : owner_->transports_)
      if (Status status = transport->forget(registration_->region()); status.code() == Code::busy)
        return status;
  registration_->release();
  if (fleeting_) (void)owner_->registry_.remove(registration_->id());
  registration_ = nullptr;
  if (whole_ != nullptr) whole_->release();
  whole_ = nullptr;
  return {};
}

Result<TemporaryRegistration> UnregisteredBuffers::borrow(const void* pointer, std::uint64_t bytes,
                                                          bool peer_reads, bool by_wire) {
  auto loan = borrow_mapped(pointer, bytes, peer_reads);
  if (!loan.ok() || loan->fleeting() || !by_wire) return loan;
  return lend_part(*std::move(loan), bytes, peer_reads);
}

Result<TemporaryRegistration> UnregisteredBuffers::lend_part(TemporaryRegistration loan,
                                                             std::uint64_t bytes, bool peer_reads) {
  const memory::Registration& whole = *loan.registration();
  const Permissions peers{.read = peer_reads,
                          .write = !peer_reads && loan.kind() == MemoryKind::device};
  auto made = registry_.add_part(whole, loan.offset(), bytes, peers);
  auto part = made.ok() ? lend(std::move(made), &publish_to_wires)
                        : Result<TemporaryRegistration>(made.status());
  if (!part.ok()) {
    (void)loan.release();
    return part.status();
  }
  part->whole_ = std::move(loan.registration_);
  return part;
}

Result<TemporaryRegistration> UnregisteredBuffers::borrow_mapped(const void* pointer,
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
  // No peer maps it, so it is registered for the message like private memory, and not kept: that
  // would stand in the way of another registration.
  const bool on_gpu = facts.kind == MemoryKind::device;
  if (registry_.any_exclusive(address, bytes, on_gpu ? facts.buffer_id : 0))
    return lend_exclusive(pointer, bytes, facts.kind, peer_reads);
  if (facts.kind == MemoryKind::device) return keep(pointer, bytes, facts.buffer_id);
  if (auto shared = registry_.find_shared(address, bytes); shared && shared->acquire()) {
    TemporaryRegistration loan;
    loan.owner_ = this;
    loan.offset_ = address - shared->region().facts().address;
    loan.registration_ = std::move(shared);
    return loan;
  }
  if (facts.buffer_id != 0) return keep(pointer, bytes, facts.buffer_id);
  return lend_once(address, bytes, facts.kind, peer_reads);
}

Result<TemporaryRegistration> UnregisteredBuffers::lend_once(std::uint64_t address,
                                                             std::uint64_t bytes, MemoryKind kind,
                                                             bool peer_reads) {
  return lend(registry_.add_private(address, bytes, kind, {.read = peer_reads}),
              &publish_everywhere);
}

Result<TemporaryRegistration> UnregisteredBuffers::lend_exclusive(const void* pointer,
                                                                  std::uint64_t bytes,
                                                                  MemoryKind kind,
                                                                  bool peer_reads) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const bool writable = kind == MemoryKind::device || memory::page_access(address, bytes).write;
  const Permissions by_us{.read = peer_reads, .write = !peer_reads && writable, .exclusive = true};
  return lend(registry_.add(const_cast<void*>(pointer), bytes, by_us, false), &publish_everywhere);
}

/// What is registered for the one message.
Result<TemporaryRegistration> UnregisteredBuffers::lend(
    Result<std::shared_ptr<const memory::Registration>> made, Publishing* publish) {
  if (!made.ok()) return made.status();
  auto keys = publish(transports_, (*made)->region());
  if (!keys.ok() || !(*made)->acquire()) {
    (void)registry_.remove((*made)->id());
    return keys.status();
  }
  TemporaryRegistration loan;
  loan.owner_ = this;
  loan.registration_ = *std::move(made);
  loan.keys_ = *std::move(keys);
  loan.fleeting_ = true;
  return loan;
}

Result<TemporaryRegistration> UnregisteredBuffers::find_kept(std::uint64_t address,
                                                             std::uint64_t bytes,
                                                             std::uint64_t buffer) {
  TemporaryRegistration loan;
  {
    const base::MutexLock lock(mutex_);
    const auto above = kept_.upper_bound(address);
    if (above == kept_.begin()) return TemporaryRegistration();
    Kept& kept = std::prev(above)->second;
    const memory::Region::Facts& facts = kept.registration->region().facts();
    const bool chunks = !facts.chunks.empty();
    if ((!chunks && kept.buffer != buffer) || address - facts.address >= facts.bytes)
      return TemporaryRegistration();
    if (!fits(address - facts.address, bytes, facts.bytes)) {
      if (chunks) return TemporaryRegistration();  // more of them may follow
      return refused(Code::invalid_argument, std::to_string(bytes) +
                                                 " bytes leave their allocation of " +
                                                 std::to_string(facts.bytes));
    }
    if (!kept.registration->acquire()) return TemporaryRegistration();
    kept.used = ++uses_;
    loan.owner_ = this;
    loan.registration_ = kept.registration;
    loan.keys_ = kept.keys;
    loan.offset_ = address - facts.address;
  }
  if (has_same_chunks(loan.registration_->region().facts(), address, bytes, buffer)) return loan;
  loan.registration_->release();
  return TemporaryRegistration();
}

/// Any of them may have been unmapped, and another one lie there. One query for each chunk behind
/// the first.
bool UnregisteredBuffers::has_same_chunks(const memory::Region::Facts& facts, std::uint64_t address,
                                          std::uint64_t bytes, std::uint64_t buffer) const {
  std::uint64_t begin = facts.allocation;
  for (const memory::Chunk& chunk : facts.chunks) {
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

Result<TemporaryRegistration> UnregisteredBuffers::keep(const void* pointer, std::uint64_t bytes,
                                                        std::uint64_t buffer) {
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(pointer);
  auto found = find_kept(address, bytes, buffer);
  if (!found.ok() || found->registration() != nullptr) return found;
  const base::MutexLock one_at_a_time(making_);
  found = find_kept(address, bytes, buffer);
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
    kept_[whole->base] = {buffer, *std::move(made), *std::move(keys), 0};
  }
  auto loan = find_kept(address, bytes, buffer);
  if (loan.ok() && loan->registration() == nullptr)
    return refused(Code::invalid_argument, std::to_string(bytes) +
                                               " bytes leave their allocation, or it was unmapped "
                                               "meanwhile");
  return loan;
}

/// What lies where the new allocation does is gone; and of too many the least recently used goes.
void UnregisteredBuffers::make_room(std::uint64_t begin, std::uint64_t bytes) {
  {
    const base::MutexLock lock(mutex_);
    const auto drop = [&](auto entry) LINKSPAN_TSA(no_thread_safety_analysis) {
      leaving_.push_back(std::move(entry->second.registration));
      return kept_.erase(entry);
    };
    for (auto entry = kept_.begin(); entry != kept_.end();) {
      const std::uint64_t there = entry->second.registration->region().bytes();
      const bool stale = entry->first < begin + bytes && begin < entry->first + there;
      entry = stale ? drop(entry) : std::next(entry);
    }
    while (kept_.size() >= kKept) {
      auto oldest = kept_.end();
      for (auto entry = kept_.begin(); entry != kept_.end(); ++entry)
        if (entry->second.registration->users() == 0 &&
            (oldest == kept_.end() || entry->second.used < oldest->second.used))
          oldest = entry;
      if (oldest == kept_.end()) break;  // all are in use: they go later
      drop(oldest);
    }
  }
  std::erase_if(leaving_, [&](const auto& registration) {
    return retract_everywhere(transports_, registration->region(), false).code() != Code::busy &&
           registry_.remove(registration->id()).code() != Code::busy;
  });
}

}  // namespace linkspan::engine
