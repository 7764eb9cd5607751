// Engine: each call goes to the EngineImpl and its services.
#include <algorithm>

#include "engine/on_engine_impl.hpp"

namespace linkspan {

using engine::AsyncCalls;
using engine::handle_of;
using engine::HandleAccess;
using engine::on;
using engine::start_call;

namespace {

Result<Peer> met(const std::shared_ptr<engine::EngineImpl>& impl,
                 Result<engine::PeerManager::MetPeer> peer) {
  if (!peer.ok()) return peer.status();
  return HandleAccess::peer(impl, peer->id, std::move(peer->name));
}

Future<void> end_async(const std::shared_ptr<engine::EngineImpl>& impl, const Region& region,
                       Duration timeout, bool immediately) {
  const auto& handle = HandleAccess::registration(region);
  Future<void> ends = start_call<void>(
      impl, &AsyncCalls::deregistrations,
      "deregister of " +
          (handle == nullptr ? "no region" : "region " + std::to_string(handle->id().serial)),
      timeout, [impl, region, immediately](Duration left) {
        return impl->services().deregister(region, left, immediately);
      });
  if (!ends.done()) (void)impl->services().registrations.unpublish(region);
  return ends;
}

}  // namespace

Engine::Engine(std::shared_ptr<engine::EngineImpl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&& other) noexcept {
  Engine old(std::move(*this));
  impl_ = std::move(other.impl_);
  return *this;
}
Engine::~Engine() {
  if (impl_ == nullptr || impl_->forked()) return;
  // If memory is still in use, the object stays until the process ends.
  if (!impl_->close(std::chrono::seconds(5)).ok()) impl_->keep_forever();
}
Result<Engine> Engine::open(const EngineOptions& options) {
  auto impl = engine::EngineImpl::open(options);
  if (!impl.ok()) return impl.status();
  return Engine(*std::move(impl));
}
Result<Region> Engine::register_memory(void* pointer, std::uint64_t bytes,
                                       const RegionOptions& options) {
  return handle_of<Region>(
      impl_, [&](auto& its) { return its.registrations.add(pointer, bytes, options); });
}
Result<Region> Engine::allocate_shared(std::uint64_t bytes, const RegionOptions& options) {
  return handle_of<Region>(
      impl_, [&](auto& its) { return its.registrations.allocate_shared(bytes, options); });
}
Status Engine::publish(std::string_view name, const Region& region) {
  return on(impl_, [&](auto& impl) { return impl.services().directory.publish(name, region); });
}
Result<std::uint64_t> Engine::publish(std::string_view name, std::span<const Region> regions) {
  return on(impl_, [&](auto& impl) { return impl.services().directory.publish(name, regions); });
}
Result<Descriptor> Engine::describe(std::string_view name) const {
  return on(impl_, [&](auto& impl) {
    const engine::PeerManager& manager = impl.services().manager;
    return impl.services().directory.describe(name, manager.addresses(), manager.engine_name());
  });
}
Status Engine::deregister(const Region& region, Duration timeout) {
  return on(impl_, [&](auto& impl) { return impl.services().deregister(region, timeout, false); });
}
Status Engine::invalidate(const Region& region, Duration timeout) {
  return on(impl_, [&](auto& impl) { return impl.services().deregister(region, timeout, true); });
}
Future<void> Engine::deregister_async(const Region& region, Duration timeout) {
  return end_async(impl_, region, timeout, false);
}
Future<void> Engine::invalidate_async(const Region& region, Duration timeout) {
  return end_async(impl_, region, timeout, true);
}
Status Engine::listen(std::string_view address) {
  return on(impl_, [&](auto& impl) { return impl.services().manager.listen(address); });
}
std::string Engine::address() const {
  return on(impl_, [&](auto& impl) { return impl.services().manager.address(); });
}
std::string Engine::addresses() const {
  return on(impl_, [&](auto& impl) { return impl.services().manager.addresses(); });
}
Result<Peer> Engine::connect(std::string_view address, Duration timeout) {
  return connect(address, ConnectOptions{.timeout = timeout});
}
Result<Peer> Engine::connect(std::string_view address, const ConnectOptions& options) {
  return on(impl_, [&](auto& impl) {
    return met(impl_, impl.services().manager.connect(address, options));
  });
}
Result<LookupResult> Engine::lookup(const Descriptor& descriptor, Duration timeout) {
  const auto deadline = base::Deadline::in(timeout);
  const auto peer = on(impl_, [&](auto& impl) {
    return met(impl_, impl.services().manager.connect_shared(descriptor.address, deadline));
  });
  if (!peer.ok()) return peer.status();
  if (descriptor.version != 0) {
    auto set = peer->lookup_set(descriptor.name, deadline.left());
    if (!set.ok()) return set.status();
    return LookupResult{.peer = *peer, .regions = *std::move(set)};
  }
  auto region = peer->lookup(descriptor.name, deadline.left());
  if (!region.ok()) return region.status();
  return LookupResult{.peer = *peer, .regions = {.version = 0, .regions = {*std::move(region)}}};
}
Future<Peer> Engine::connect_async(std::string_view address, const ConnectOptions& options) {
  return start_call<Peer>(impl_, &AsyncCalls::connects, "connect to " + std::string(address),
                          options.timeout,
                          [impl = impl_, at = std::string(address), options](Duration left) {
                            ConnectOptions now = options;
                            now.timeout = left;
                            return met(impl, impl->services().manager.connect(at, now));
                          });
}
Result<Peer> Engine::accept(Duration timeout) {
  return on(impl_, [&](auto& impl) { return met(impl_, impl.services().manager.accept(timeout)); });
}
std::vector<Peer> Engine::peers() const {
  return on(impl_, [&](auto& impl) {
    std::vector<Peer> connected;
    for (const auto& each : impl.services().peers.all())
      if (each->state() == PeerState::up)
        connected.push_back(HandleAccess::peer(impl_, each->id(), each->session()->hello().engine));
    return connected;
  });
}
Result<Peer> Engine::find_peer(std::string_view name) const {
  const std::vector<Peer> connected = peers();
  const auto found = std::find_if(connected.rbegin(), connected.rend(),
                                  [&](const Peer& each) { return each.name() == name; });
  if (found != connected.rend()) return *found;
  return Status(Code::not_found, Scope::request,
                "no Engine \"" + std::string(name) + "\" is connected");
}
std::vector<Result<Transfer>> Engine::write_to_all(const Region& local,
                                                   std::span<const RemoteRegion> targets,
                                                   const Shape& shape,
                                                   const TransferOptions& options) {
  const Status usable = on(impl_, [](auto&) { return Status(); });
  if (!usable.ok()) return std::vector<Result<Transfer>>(targets.size(), usable);
  std::vector<Result<Transfer>> transfers;
  transfers.reserve(targets.size());
  for (auto& each : impl_->services().submission.write_to_all(local, targets, shape, options))
    transfers.push_back(HandleAccess::wrap<Transfer>(impl_, std::move(each)));
  return transfers;
}
std::size_t Engine::progress() {
  return on(impl_, [&](auto& impl) { return impl.progress(); });
}
std::vector<Notification> Engine::notifications(Duration timeout) {
  return on(impl_, [&](auto& impl) {
    return impl.services().inbox.collect(timeout, [&] { (void)impl.progress(); });
  });
}
std::string Engine::dump() const {
  return on(impl_, [&](auto& impl) { return impl.services().diagnostics.dump(); });
}
std::string Engine::metrics() const {
  return on(impl_, [&](auto& impl) { return impl.services().diagnostics.metrics(); });
}
Status Engine::close(Duration timeout) {
  return on(impl_, [&](auto& impl) { return impl.close(timeout); });
}

}  // namespace linkspan
