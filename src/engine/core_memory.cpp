// Regions of a Core: registration, publication, and what peers import.
#include "engine/core.hpp"

namespace linkspan::engine {
namespace {

using namespace std::chrono_literals;

}  // namespace

Result<Region> Core::register_memory(void* pointer, std::uint64_t bytes,
                                     const RegionOptions& options) {
  return admit(registry_->add(pointer, bytes, options.peers, options.pin));
}

Result<Region> Core::allocate_shared(std::uint64_t bytes, const RegionOptions& options) {
  return admit(registry_->allocate_shared(bytes, options.peers));
}

/// Every transport is asked for a key; the region is good if one gave it.
Result<Region> Core::admit(Result<std::shared_ptr<const memory::Registration>> registration) {
  if (!registration.ok()) return registration.status();
  if (closed_) return Status(Code::canceled, Scope::process, "the Engine is closed");
  const memory::Region& region = (*registration)->region();
  std::vector<std::optional<memory::PublishedKey>> keys(transports_.size());
  Status refused;
  bool any = false;
  for (std::size_t i = 0; i < transports_.size(); ++i) {
    auto key = transports_[i]->publish(region);
    if (key.ok()) {
      keys[i] = *std::move(key);
      any = true;
    } else if (refused.ok()) {
      refused = key.status();
    }
  }
  if (!any) {
    (void)registry_->remove((*registration)->id());
    return refused;
  }
  const base::MutexLock lock(exports_mutex_);
  exports_[(*registration)->id().serial] = std::move(keys);
  return Region(*std::move(registration));
}

Status Core::publish(std::string_view name, const Region& region) {
  if (!region.valid() || name.empty())
    return {Code::invalid_argument, Scope::request, "publish needs a region and a name"};
  return registry_->set_name(region.registration_->id(), name);
}

Status Core::deregister(const Region& region, Duration timeout) {
  if (!region.valid() || registry_->find(region.registration_->id()) == nullptr)
    return {Code::invalid_argument, Scope::request, "the region is not registered in this Engine"};
  const memory::Registration& registration = *region.registration_;
  const base::Deadline deadline = after(timeout);
  (void)registry_->set_name(registration.id(), {});
  {
    const base::MutexLock lock(exports_mutex_);
    exports_.erase(registration.id().serial);
  }
  for (;;) {
    Status status;
    for (const auto& transport : transports_) {
      Status retracted = transport->retract(registration.region());
      if (retracted.code() == Code::not_found) continue;  // it published nothing, or has let go
      if (status.ok()) status = retracted;
    }
    if (status.ok()) status = registry_->remove(registration.id());
    if (status.code() != Code::busy || deadline.passed()) return status;
    const base::MutexLock lock(worker_.mutex);
    if (worker_.progress() != 0) quiet_.notify_all();
    quiet_.wait(worker_.mutex, after(std::min<Duration>(deadline.left(), 1ms)));
  }
}

Result<control::Exported> Core::exported(std::string_view name) {
  const auto registration = registry_->find_name(name);
  if (registration == nullptr)
    return Status(Code::not_found, Scope::request,
                  "no region is published as \"" + std::string(name) + "\"");
  const memory::Region::Facts& facts = registration->region().facts();
  memory::Descriptor descriptor{.name = std::string(name),
                                .id = facts.id,
                                .kind = facts.kind,
                                .peers = facts.peers,
                                .gpu = facts.gpu,
                                .bytes = facts.bytes,
                                .keys = {}};
  control::Exported out;
  const base::MutexLock lock(exports_mutex_);
  const auto keys = exports_.find(facts.id.serial);
  if (keys == exports_.end())
    return Status(Code::not_found, Scope::request, "the region is being deregistered");
  for (std::size_t i = 0; i < transports_.size(); ++i) {
    const auto& key = keys->second[i];
    if (!key) continue;
    for (const base::Fd& fd : key->fds) {
      auto duplicate = fd.duplicate();
      if (!duplicate.ok()) return duplicate.status();
      out.fds.push_back(*std::move(duplicate));
    }
    descriptor.keys.push_back({.transport = std::string(transports_[i]->name()),
                               .bytes = key->bytes,
                               .fd_count = static_cast<std::uint32_t>(key->fds.size()),
                               .bearer = key->bearer});
  }
  out.descriptor = memory::encode(descriptor);
  return out;
}

Result<std::shared_ptr<ImportedRegion>> Core::import(control::Session& session,
                                                     control::Exported& exported,
                                                     base::Deadline deadline) {
  auto descriptor = memory::decode(exported.descriptor);
  if (!descriptor.ok()) return descriptor.status();
  if (descriptor->id.incarnation != session.incarnation())
    return Status(Code::corrupt, Scope::peer, "a descriptor of another Engine's region");
  // Shared: the user's RemoteRegion and transfers in flight.
  auto imported = std::make_shared<ImportedRegion>();
  imported->peer = session.id();
  imported->incarnation = session.incarnation();
  imported->name = descriptor->name;
  imported->kind = descriptor->kind;
  imported->bytes = descriptor->bytes;
  imported->peers = descriptor->peers;
  imported->mappings.resize(transports_.size());
  std::span<base::Fd> fds(exported.fds);
  Status refused;
  bool any = false;
  for (const memory::Descriptor::Key& key : descriptor->keys) {
    if (key.fd_count > fds.size())
      return Status(Code::corrupt, Scope::peer, "a key came without its fds");
    const auto of_key = fds.first(key.fd_count);
    fds = fds.subspan(key.fd_count);
    for (std::size_t i = 0; i < transports_.size(); ++i) {
      if (transports_[i]->name() != key.transport) continue;
      auto mapping = transports_[i]->import_key({key.bytes, of_key}, deadline);
      if (mapping.ok() && (*mapping)->bytes() != descriptor->bytes)
        return Status(Code::corrupt, Scope::peer, "a key and its descriptor differ in size");
      if (mapping.ok()) {
        imported->mappings[i] = *std::move(mapping);
        any = true;
      } else if (refused.ok()) {
        refused = mapping.status();
      }
    }
  }
  if (any) return imported;
  if (!refused.ok()) return refused;
  return Status(Code::unreachable, Scope::request,
                "\"" + imported->name + "\" has a key for no transport of ours");
}

}  // namespace linkspan::engine
