#include "engine/registration/registration_service.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/interrupt.hpp"
#include "engine/handle_access.hpp"
#include "memory/validate_allocation.hpp"

namespace linkspan::engine {

using namespace std::chrono_literals;

RegistrationService::Registered RegistrationService::add(void* pointer, std::uint64_t bytes,
                                                         const RegionOptions& options) {
  return admit(context_.registry->add(pointer, bytes, options.peers, options.pin));
}

RegistrationService::Registered RegistrationService::allocate_shared(std::uint64_t bytes,
                                                                     const RegionOptions& options) {
  return admit(context_.registry->allocate_shared(bytes, options.peers));
}

/// Publishes a new registration to the transports, and removes it again if that fails or the
/// service is closed.
RegistrationService::Registered RegistrationService::admit(Registered registration) {
  if (!registration.ok()) return registration;
  Status refused;
  {
    const base::MutexLock lock(mutex_);
    if (closed_) refused = Status(Code::canceled, Scope::process, "the Engine is closed");
  }
  auto keys = refused.ok() ? publish_everywhere(context_.transports, (*registration)->region())
                           : Result<std::shared_ptr<const Keys>>(refused);
  if (!keys.ok()) {
    (void)context_.registry->remove((*registration)->id());
    return keys.status();
  }
  streams_.make_ready();
  const base::MutexLock lock(mutex_);
  keys_[(*registration)->id().serial] = *std::move(keys);
  return registration;
}

void RegistrationService::close() {
  const base::MutexLock lock(mutex_);
  closed_ = true;
}

Status RegistrationService::unpublish(const Region& region) {
  const auto& handle = HandleAccess::registration(region);
  if (handle == nullptr || context_.registry->find(handle->id()) == nullptr)
    return {Code::invalid_argument, Scope::request, "the region is not registered in this Engine"};
  (void)context_.registry->set_name(handle->id(), {});
  const base::MutexLock lock(mutex_);
  keys_.erase(handle->id().serial);
  return {};
}

Status RegistrationService::end(const Region& region, Duration timeout, bool immediately) {
  const auto deadline = base::Deadline::in(timeout);
  if (Status status = unpublish(region); !status.ok()) return status;
  const memory::Registration& registration = *HandleAccess::registration(region);
  const std::uint64_t serial = registration.id().serial;
  base::InterruptPoll poll;
  for (bool first = true;; first = false) {
    if (poll.due_and_interrupted()) return base::interrupted();
    const std::uint64_t seen = peers_.changes();
    captures_.end_on(registration);
    Status status = retract_everywhere(context_.transports, registration.region(), immediately);
    // The user frees the memory next, so the unpinning cannot be deferred
    // (cuda/deferred_destroyer.hpp).
    if (status.ok() && registration.unpins() && !context_.topology->destroyer()->unguarded())
      status = {Code::busy, Scope::process,
                "to unpin it would wait for the streams that transfers of this Engine follow or "
                "hold, and hold up all others: wait for those transfers"};
    pairs_.drop(registration);  // also what a transfer adds meanwhile
    if (status.ok()) status = context_.registry->remove(registration.id());
    if (status.ok())
      for (const auto& peer : peers_.all()) peer->retracted(serial);
    if (status.code() != Code::busy) return status;
    const bool cancels = immediately && first;
    if (deadline.passed() && !cancels) {
      std::string users;
      for (const auto& peer : peers_.all())
        if (const std::string uses = peer->uses_of(serial); !uses.empty())
          users += (users.empty() ? "" : ", ") + uses;
      return users.empty() ? status
                           : Status(Code::busy, status.scope(), status.what() + ": " + users);
    }
    // Nothing is submitted on the region any more, so this cancels all that use it.
    if (cancels)
      for (const auto& peer : peers_.all()) peer->cancel_all_on(registration);
    (void)peers_.progress(base::Clock::steady().now());
    (void)peers_.wait_for_change(seen,
                                 base::Deadline::in(std::min<Duration>(deadline.left(), 1ms)));
  }
}

std::shared_ptr<const Keys> RegistrationService::keys_of(std::uint64_t serial) const {
  const base::MutexLock lock(mutex_);
  const auto found = keys_.find(serial);
  return found == keys_.end() ? nullptr : found->second;
}

Result<control::ExportedRegion> RegistrationService::export_named(const control::Session& session,
                                                                  std::string_view name,
                                                                  std::uint64_t serial) {
  const auto found = context_.registry->find_name(name, serial);
  if (!found.ok()) return found.status();
  const std::shared_ptr<const memory::Registration>& registration = *found;
  const auto keys = keys_of(registration->id().serial);
  if (keys == nullptr)
    return Status(Code::not_found, Scope::request, "the region is being deregistered");
  // The address may have other memory by now. Chunks and pools are checked where they are exported.
  if (const memory::Region::Facts& facts = registration->region().facts();
      facts.kind == MemoryKind::device && facts.chunks.empty() &&
      facts.pages != memory::PageSource::pool)
    if (Status status =
            memory::validate_allocation(*context_.topology, facts.address, facts.id.buffer);
        !status.ok())
      return status;
  auto sent = engine::export_region(context_.transports, registration->region(), *keys, name,
                                    session.is_remote());
  if (const auto peer = sent.ok() ? peers_.find(session.id()) : nullptr; peer != nullptr)
    peer->count_export(registration->id().serial);
  return sent;
}

Result<control::ExportedRegion> RegistrationService::export_offered(const control::Session& session,
                                                                    std::uint64_t serial) {
  const auto peer = peers_.find(session.id());
  PeerScheduler::OfferedMemory offered;
  if (peer != nullptr) offered = peer->offered(serial);
  if (offered.registration != nullptr && offered.keys == nullptr) offered.keys = keys_of(serial);
  if (offered.keys == nullptr)
    return Status(Code::not_found, Scope::request, "no such region was offered to you");
  auto sent = engine::export_region(context_.transports, offered.registration->region(),
                                    *offered.keys, {}, session.is_remote());
  if (sent.ok()) peer->count_export(0);
  return sent;
}

}  // namespace linkspan::engine
