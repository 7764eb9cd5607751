// Regions of an EngineImpl: registration, publication, and what peers import.
#include "base/interrupt.hpp"
#include "engine/engine_impl.hpp"
#include "memory/validate_allocation.hpp"

namespace linkspan::engine {
namespace {

using namespace std::chrono_literals;

}  // namespace

Result<Region> EngineImpl::register_memory(void* pointer, std::uint64_t bytes,
                                           const RegionOptions& options) {
  return admit(registry_->add(pointer, bytes, options.peers, options.pin));
}

Result<Region> EngineImpl::allocate_shared(std::uint64_t bytes, const RegionOptions& options) {
  return admit(registry_->allocate_shared(bytes, options.peers));
}

/// Publishes a new registration to the transports, and removes it again if that fails.
Result<Region> EngineImpl::admit(Result<std::shared_ptr<const memory::Registration>> registration) {
  if (!registration.ok()) return registration.status();
  if (closed_) return Status(Code::canceled, Scope::process, "the Engine is closed");
  auto keys = publish_everywhere(transports_, (*registration)->region());
  if (!keys.ok()) {
    (void)registry_->remove((*registration)->id());
    return keys.status();
  }
  streams_->make_ready();
  const base::MutexLock lock(exports_mutex_);
  exports_[(*registration)->id().serial] = *std::move(keys);
  return Region(*std::move(registration));
}

Status EngineImpl::deregister(const Region& region, Duration timeout) {
  return end_region(region, timeout, false);
}

Status EngineImpl::invalidate(const Region& region, Duration timeout) {
  return end_region(region, timeout, true);
}

Status EngineImpl::end_region(const Region& region, Duration timeout, bool immediately) {
  if (!region.valid() || registry_->find(region.registration_->id()) == nullptr)
    return {Code::invalid_argument, Scope::request, "the region is not registered in this Engine"};
  const memory::Registration& registration = *region.registration_;
  const base::Deadline deadline = after(timeout);
  (void)registry_->set_name(registration.id(), {});
  {
    const base::MutexLock lock(exports_mutex_);
    exports_.erase(registration.id().serial);
  }
  base::InterruptPoll poll;
  for (bool first = true;; first = false) {
    if (poll.due_and_interrupted()) return base::interrupted();
    Status status = retract_everywhere(transports_, registration.region(), immediately);
    // The user frees it next, so this cannot be put off (cuda/deferred_destroyer.hpp).
    if (status.ok() && registration.unpins() && !topology_->destroyer()->unguarded())
      status = {Code::busy, Scope::process,
                "to unpin it would wait for the streams that transfers of this Engine follow or "
                "hold, and hold up all others: wait for those transfers"};
    if (status.ok()) status = registry_->remove(registration.id());
    const bool cancels = immediately && first;
    const base::MutexLock lock(scheduler_.mutex);
    if (status.ok()) scheduler_.retracted(registration.id().serial);
    if (status.code() != Code::busy) return status;
    if (deadline.passed() && !cancels) {
      const std::string users = scheduler_.users_of(registration.id().serial);
      return users.empty() ? status
                           : Status(Code::busy, status.scope(), status.what() + ": " + users);
    }
    // Now that nothing is submitted on it any more, nothing escapes.
    if (cancels) scheduler_.cancel_all_on(registration);
    advance();
    quiet_.wait(scheduler_.mutex, after(std::min<Duration>(deadline.left(), 1ms)));
  }
}

Result<control::ExportedRegion> EngineImpl::on_import_request(control::Session& session,
                                                              std::string_view name,
                                                              std::uint64_t serial) {
  const auto found = registry_->find_name(name, serial);
  if (!found.ok()) return found.status();
  const std::shared_ptr<const memory::Registration>& registration = *found;
  const auto keys = keys_of(registration->id().serial);
  if (keys == nullptr)
    return Status(Code::not_found, Scope::request, "the region is being deregistered");
  // The address may have other memory by now. Chunks and pools are checked where they are exported.
  if (const memory::Region::Facts& facts = registration->region().facts();
      facts.kind == MemoryKind::device && facts.chunks.empty() && !facts.pooled)
    if (Status status = memory::validate_allocation(*topology_, facts.address, facts.id.buffer);
        !status.ok())
      return status;
  auto sent =
      engine::export_region(transports_, registration->region(), *keys, name, session.is_remote());
  if (sent.ok()) {
    const base::MutexLock lock(scheduler_.mutex);
    scheduler_.count_export(session.id(), registration->id().serial);
  }
  return sent;
}

std::shared_ptr<const Keys> EngineImpl::keys_of(std::uint64_t serial) {
  const base::MutexLock lock(exports_mutex_);
  const auto found = exports_.find(serial);
  return found == exports_.end() ? nullptr : found->second;
}

Result<std::shared_ptr<ImportedRegion>> EngineImpl::import(const PeerIdentity& peer,
                                                           control::ExportedRegion& exported,
                                                           base::Deadline deadline) {
  auto descriptor = memory::decode(exported.descriptor);
  if (!descriptor.ok()) return descriptor.status();
  if (descriptor->id.incarnation != peer.incarnation)
    return Status(Code::corrupt, Scope::peer, "a descriptor of another Engine's region");
  // Shared: the user's RemoteRegion and transfers in flight.
  auto imported = std::make_shared<ImportedRegion>();
  imported->peer = peer.id;
  imported->incarnation = peer.incarnation;
  imported->name = descriptor->name;
  imported->kind = descriptor->kind;
  imported->bytes = descriptor->bytes;
  imported->peers = descriptor->peers;
  imported->mappings.resize(transports_.size());
  std::span<base::Fd> fds(exported.fds);
  Status refused;
  bool any = false;
  for (const memory::Descriptor::TransportKey& key : descriptor->keys) {
    if (key.fd_count > fds.size())
      return Status(Code::corrupt, Scope::peer, "a key came without its fds");
    const auto of_key = fds.first(key.fd_count);
    fds = fds.subspan(key.fd_count);
    for (std::size_t i = 0; i < transports_.size(); ++i) {
      if (transports_[i]->name() != key.transport || !reaches(*transports_[i], peer.remote))
        continue;
      auto mapping = transports_[i]->import_key(
          {key.bytes, of_key, peer.incarnation, peer.this_process, peer.pid}, deadline);
      if (mapping.ok() && (*mapping)->bytes() != descriptor->bytes)
        return Status(Code::corrupt, Scope::peer, "a key and its descriptor differ in size");
      if (mapping.ok()) {
        imported->mappings[i] = *std::move(mapping);
        any = true;
      } else if (!is_declined(mapping.status())) {
        return mapping.status();
      } else if (refused.ok()) {
        refused = mapping.status();
      }
    }
  }
  streams_->make_ready();  // to reach it, GPUs may have come up
  if (any) return imported;
  if (!refused.ok()) return refused;
  return Status(Code::unreachable, Scope::request,
                "\"" + imported->name + "\" has a key for no transport of ours");
}

}  // namespace linkspan::engine
