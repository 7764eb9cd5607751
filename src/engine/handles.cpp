// The public handles: each call goes to the EngineImpl.
#include <type_traits>

#include "engine/handle_access.hpp"
#include "engine/on_engine_impl.hpp"
#include "engine/transfers/completion_queue.hpp"
#include "linkspan/completion_queue.hpp"

namespace linkspan {

using namespace std::chrono_literals;
using engine::HandleAccess;
using engine::on;

namespace {

/// Makes the user's handle of what a service returned.
template <class Handle, class State>
Result<Handle> wrapped(const std::shared_ptr<engine::EngineImpl>& impl,
                       Result<std::shared_ptr<State>> state) {
  if (!state.ok()) return state.status();
  if constexpr (std::is_same_v<Handle, Region>)
    return HandleAccess::wrap(*std::move(state));
  else
    return HandleAccess::wrap(impl, *std::move(state));
}

/// Returns the Engine's refusal for each target.
std::vector<Result<Transfer>> to_all(const std::shared_ptr<engine::EngineImpl>& impl,
                                     const Region& local, std::span<const RemoteRegion> targets,
                                     const engine::UserShape& shape,
                                     const TransferOptions& options) {
  const Status usable = on(impl, [](auto&) { return Status(); });
  if (!usable.ok()) return std::vector<Result<Transfer>>(targets.size(), usable);
  std::vector<Result<Transfer>> transfers;
  transfers.reserve(targets.size());
  for (auto& each : impl->submission().write_to_all(local, targets, shape, options))
    transfers.push_back(wrapped<Transfer>(impl, std::move(each)));
  return transfers;
}

Result<Transfer> submit(const std::shared_ptr<engine::EngineImpl>& impl, std::uint64_t peer, Op op,
                        const Region& local, const RemoteRegion& remote,
                        const engine::UserShape& shape, const TransferOptions& options) {
  return on(impl, [&](auto& engine) {
    return wrapped<Transfer>(impl,
                             engine.submission().submit(peer, op, local, remote, shape, options));
  });
}

Result<Prepared> prepare(const std::shared_ptr<engine::EngineImpl>& impl, std::uint64_t peer, Op op,
                         const Region& local, const RemoteRegion& remote,
                         const engine::UserShape& shape) {
  return on(impl, [&](auto& engine) {
    return wrapped<Prepared>(impl, engine.submission().prepare(peer, op, local, remote, shape));
  });
}

Result<Peer> met(const std::shared_ptr<engine::EngineImpl>& impl,
                 Result<engine::PeerManager::MetPeer> peer) {
  if (!peer.ok()) return peer.status();
  return HandleAccess::peer(impl, peer->id, std::move(peer->name));
}

}  // namespace

// Engine
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
  if (!impl_->close(5s).ok()) impl_->keep_forever();
}
Result<Engine> Engine::open(const EngineOptions& options) {
  auto impl = engine::EngineImpl::open(options);
  if (!impl.ok()) return impl.status();
  return Engine(*std::move(impl));
}
Result<Region> Engine::register_memory(void* pointer, std::uint64_t bytes,
                                       const RegionOptions& options) {
  return on(impl_, [&](auto& impl) {
    return wrapped<Region>(impl_, impl.registrations().add(pointer, bytes, options));
  });
}
Result<Region> Engine::allocate_shared(std::uint64_t bytes, const RegionOptions& options) {
  return on(impl_, [&](auto& impl) {
    return wrapped<Region>(impl_, impl.registrations().allocate_shared(bytes, options));
  });
}
Status Engine::publish(std::string_view name, const Region& region) {
  return on(impl_, [&](auto& impl) { return impl.directory().publish(name, region); });
}
Result<std::uint64_t> Engine::publish(std::string_view name, std::span<const Region> regions) {
  return on(impl_, [&](auto& impl) { return impl.directory().publish(name, regions); });
}
Status Engine::deregister(const Region& region, Duration timeout) {
  return on(impl_, [&](auto& impl) { return impl.registrations().end(region, timeout, false); });
}
Status Engine::invalidate(const Region& region, Duration timeout) {
  return on(impl_, [&](auto& impl) { return impl.registrations().end(region, timeout, true); });
}
Status Engine::listen(std::string_view address) {
  return on(impl_, [&](auto& impl) { return impl.manager().listen(address); });
}
std::string Engine::address() const {
  return on(impl_, [&](auto& impl) { return impl.manager().address(); });
}
Result<Peer> Engine::connect(std::string_view address, Duration timeout) {
  return connect(address, ConnectOptions{.timeout = timeout});
}
Result<Peer> Engine::connect(std::string_view address, const ConnectOptions& options) {
  return on(impl_,
            [&](auto& impl) { return met(impl_, impl.manager().connect(address, options)); });
}
Result<Peer> Engine::accept(Duration timeout) {
  return on(impl_, [&](auto& impl) { return met(impl_, impl.manager().accept(timeout)); });
}
std::vector<Result<Transfer>> Engine::write_to_all(const Region& local,
                                                   std::span<const RemoteRegion> targets,
                                                   std::span<const Block> blocks,
                                                   const TransferOptions& options) {
  return to_all(impl_, local, targets, blocks, options);
}
std::vector<Result<Transfer>> Engine::write_to_all(const Region& local,
                                                   std::span<const RemoteRegion> targets,
                                                   const Pages& pages,
                                                   const TransferOptions& options) {
  return to_all(impl_, local, targets, pages, options);
}
std::vector<Result<Transfer>> Engine::write_to_all(const Region& local,
                                                   std::span<const RemoteRegion> targets,
                                                   const Strides& strides,
                                                   const TransferOptions& options) {
  return to_all(impl_, local, targets, strides, options);
}
std::size_t Engine::progress() {
  return on(impl_, [&](auto& impl) { return impl.progress(); });
}
std::vector<Notification> Engine::notifications(Duration timeout) {
  return on(impl_, [&](auto& impl) { return impl.inbox().collect(timeout); });
}
std::string Engine::dump() const {
  return on(impl_, [&](auto& impl) { return impl.diagnostics().dump(); });
}
std::string Engine::metrics() const {
  return on(impl_, [&](auto& impl) { return impl.diagnostics().metrics(); });
}
Status Engine::close(Duration timeout) {
  return on(impl_, [&](auto& impl) { return impl.close(timeout); });
}

// Peer
Peer::Peer(std::shared_ptr<engine::EngineImpl> impl, std::uint64_t id, std::string name)
    : impl_(std::move(impl)), id_(id), name_(std::move(name)) {}
PeerState Peer::state() const {
  return impl_ == nullptr || impl_->forked() ? PeerState::gone : impl_->state(id_);
}
Status Peer::close(Duration timeout) const {
  return on(impl_, [&](auto& impl) { return impl.close(id_, timeout); });
}
Result<RemoteRegion> Peer::lookup(std::string_view name, Duration timeout) const {
  return on(impl_, [&](auto& impl) {
    return wrapped<RemoteRegion>(impl_, impl.imports().lookup(id_, name, timeout));
  });
}
Result<RegionSet> Peer::lookup_set(std::string_view name, Duration timeout) const {
  return on(impl_, [&](auto& impl) -> Result<RegionSet> {
    auto found = impl.imports().lookup_set(id_, name, timeout);
    if (!found.ok()) return found.status();
    RegionSet set{.version = found->version, .regions = {}};
    for (auto& region : found->regions)
      set.regions.push_back(HandleAccess::wrap(impl_, std::move(region)));
    return set;
  });
}
Result<std::uint64_t> Peer::await_version(std::string_view name, std::uint64_t above,
                                          Duration timeout) const {
  return on(impl_,
            [&](auto& impl) { return impl.imports().await_version(id_, name, above, timeout); });
}
Result<Transfer> Peer::write(const Region& local, const RemoteRegion& remote,
                             std::span<const Block> blocks, const TransferOptions& options) const {
  return submit(impl_, id_, Op::write, local, remote, blocks, options);
}
Result<Transfer> Peer::read(const Region& local, const RemoteRegion& remote,
                            std::span<const Block> blocks, const TransferOptions& options) const {
  return submit(impl_, id_, Op::read, local, remote, blocks, options);
}
Result<Transfer> Peer::write(const Region& local, const RemoteRegion& remote, const Pages& pages,
                             const TransferOptions& options) const {
  return submit(impl_, id_, Op::write, local, remote, pages, options);
}
Result<Transfer> Peer::read(const Region& local, const RemoteRegion& remote, const Pages& pages,
                            const TransferOptions& options) const {
  return submit(impl_, id_, Op::read, local, remote, pages, options);
}
Result<Transfer> Peer::write(const Region& local, const RemoteRegion& remote,
                             const Strides& strides, const TransferOptions& options) const {
  return submit(impl_, id_, Op::write, local, remote, strides, options);
}
Result<Transfer> Peer::read(const Region& local, const RemoteRegion& remote, const Strides& strides,
                            const TransferOptions& options) const {
  return submit(impl_, id_, Op::read, local, remote, strides, options);
}
Result<Prepared> Peer::prepare(Op op, const Region& local, const RemoteRegion& remote,
                               std::span<const Block> blocks) const {
  return linkspan::prepare(impl_, id_, op, local, remote, blocks);
}
Result<Prepared> Peer::prepare(Op op, const Region& local, const RemoteRegion& remote,
                               const Pages& pages) const {
  return linkspan::prepare(impl_, id_, op, local, remote, pages);
}
Result<Prepared> Peer::prepare(Op op, const Region& local, const RemoteRegion& remote,
                               const Strides& strides) const {
  return linkspan::prepare(impl_, id_, op, local, remote, strides);
}
Result<Transfer> Peer::send(std::uint64_t tag, const void* data, std::uint64_t bytes,
                            const TransferOptions& options) const {
  return on(impl_, [&](auto& impl) {
    return wrapped<Transfer>(
        impl_, impl.messages().submit(id_, {.sends = true, .tag = tag}, data, bytes, options));
  });
}
Result<Transfer> Peer::recv(std::uint64_t tag, void* data, std::uint64_t bytes,
                            const TransferOptions& options) const {
  return on(impl_, [&](auto& impl) {
    return wrapped<Transfer>(
        impl_, impl.messages().submit(id_, {.sends = false, .tag = tag}, data, bytes, options));
  });
}
Result<Window> Peer::window(const Region& local, const RemoteRegion& remote,
                            const Region& local_pad, const RemoteRegion& remote_pad,
                            const WindowOptions& options) const {
  return on(impl_, [&](auto& impl) {
    return wrapped<Window>(impl_,
                           impl.windows().open(id_, local, remote, local_pad, remote_pad, options));
  });
}
Status Peer::notify(std::span<const std::byte> message) const {
  return on(impl_, [&](auto& impl) { return impl.notify(id_, message); });
}
Result<Explanation> Peer::explain(Op op, const Region& local, const RemoteRegion& remote,
                                  std::uint64_t blocks, std::uint64_t bytes,
                                  const TransferOptions& options) const {
  return on(impl_, [&](auto& impl) -> Result<Explanation> {
    const auto between = impl.submission().resolve(id_, op, local, remote);
    if (!between.ok()) return between.status();
    return impl.submission().explain(
        *between, {.blocks = blocks, .bytes = bytes, .hints = engine::hints_of(options)});
  });
}

// Prepared
Prepared::Prepared(std::shared_ptr<engine::EngineImpl> impl,
                   std::shared_ptr<engine::PreparedState> state)
    : impl_(std::move(impl)), state_(std::move(state)) {}
std::uint64_t Prepared::bytes() const noexcept {
  return state_ == nullptr ? 0 : state_->size.bytes;
}
Result<Transfer> Prepared::post(const TransferOptions& options) const {
  return on(impl_, [&](auto& impl) {
    return wrapped<Transfer>(impl_, impl.submission().post(state_, options));
  });
}
Result<Transfer> Prepared::post(std::span<const std::uint32_t> positions,
                                const TransferOptions& options) const {
  return on(impl_, [&](auto& impl) {
    return wrapped<Transfer>(impl_, impl.submission().post(*state_, positions, options));
  });
}

// Transfer
Transfer::Transfer(std::shared_ptr<engine::EngineImpl> impl,
                   std::shared_ptr<engine::TransferState> state)
    : impl_(std::move(impl)), state_(std::move(state)) {}
Status Transfer::wait(Duration timeout) const {
  if (state_ == nullptr) return {Code::invalid_argument, Scope::request, "no transfer"};
  return on(impl_, [&](auto& impl) { return impl.wait(*state_, timeout); });
}
bool Transfer::done() const noexcept {
  return state_ == nullptr || state_->quiet.load(std::memory_order_acquire);
}
Status Transfer::status() const {
  if (state_ == nullptr) return {Code::invalid_argument, Scope::request, "no transfer"};
  if (!done()) return {Code::pending, Scope::request, "it is not quiet yet"};
  return state_->end;
}
Status Transfer::cancel() const {
  if (state_ == nullptr) return {Code::invalid_argument, Scope::request, "no transfer"};
  return on(impl_, [&](auto& impl) { return impl.cancel(*state_); });
}
std::uint64_t Transfer::bytes() const noexcept {
  if (state_ == nullptr) return 0;
  const bool room = state_->message != nullptr && !state_->message->sends && !done();
  return room ? 0 : state_->bytes;
}
std::uint64_t Transfer::id() const noexcept { return state_ == nullptr ? 0 : state_->id; }

// CompletionQueue
CompletionQueue::CompletionQueue(std::shared_ptr<engine::CompletionQueueState> state)
    : state_(std::move(state)) {}
Result<CompletionQueue> CompletionQueue::create() {
  auto state = engine::CompletionQueueState::create();
  if (!state.ok()) return state.status();
  return CompletionQueue(*std::move(state));
}
int CompletionQueue::fd() const noexcept {
  return state_ == nullptr || state_->forked() ? -1 : state_->fd();
}
Status CompletionQueue::add(const Transfer& transfer, std::uint64_t cookie) {
  if (transfer.state_ == nullptr) return {Code::invalid_argument, Scope::request, "no transfer"};
  if (state_ == nullptr) return {Code::invalid_argument, Scope::request, "no completion queue"};
  if (state_->forked())
    return {Code::invalid_argument, Scope::process,
            "this process was forked from the one that made the completion queue: make one here"};
  return on(transfer.impl_, [&](auto& impl) {
    return impl.attach_completion_queue(*transfer.state_, state_, cookie);
  });
}
std::vector<std::uint64_t> CompletionQueue::take(std::size_t at_most) {
  if (state_ == nullptr || state_->forked()) return {};
  return state_->pop(at_most);
}

// Region
Region::Region(std::shared_ptr<const memory::Registration> registration)
    : registration_(std::move(registration)) {}
std::uint64_t Region::bytes() const noexcept {
  return registration_ == nullptr ? 0 : registration_->region().bytes();
}
MemoryKind Region::kind() const noexcept {
  return registration_ == nullptr ? MemoryKind::host : registration_->region().facts().kind;
}
void* Region::data() const noexcept {
  if (registration_ == nullptr) return nullptr;
  return reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr)
      registration_->region().facts().address);
}
GpuUuid Region::gpu() const noexcept {
  return registration_ == nullptr ? GpuUuid{} : registration_->region().facts().gpu;
}
std::string Region::describe() const {
  if (registration_ == nullptr) return "no region";
  return std::to_string(bytes()) + " bytes of " + std::string(name_of(kind())) + " memory";
}

// RemoteRegion
RemoteRegion::RemoteRegion(std::shared_ptr<engine::EngineImpl> impl,
                           std::shared_ptr<engine::ImportedRegion> imported)
    : impl_(std::move(impl)), imported_(std::move(imported)) {}
std::uint64_t RemoteRegion::bytes() const noexcept {
  return imported_ == nullptr ? 0 : imported_->bytes;
}
MemoryKind RemoteRegion::kind() const noexcept {
  return imported_ == nullptr ? MemoryKind::host : imported_->kind;
}
Permissions RemoteRegion::permissions() const noexcept {
  return imported_ == nullptr ? Permissions{} : imported_->peers;
}
std::string RemoteRegion::name() const {
  return imported_ == nullptr ? std::string() : imported_->name;
}
std::uint64_t RemoteRegion::peer() const noexcept {
  return imported_ == nullptr ? 0 : imported_->peer;
}

// Window
Window::Window(std::shared_ptr<engine::EngineImpl> impl, std::shared_ptr<engine::WindowState> state)
    : impl_(std::move(impl)), state_(std::move(state)) {}
device::Window Window::device() const {
  return state_ == nullptr ? device::Window{} : state_->device();
}
std::string Window::path() const { return state_ == nullptr ? "" : state_->path(); }
Status Window::failure() const {
  return on(impl_, [&](auto& impl) { return impl.windows().failure(*state_); });
}
Status Window::cancel() const {
  return on(impl_, [&](auto& impl) { return impl.windows().cancel(*state_); });
}
Status Window::raise(std::uint32_t index, std::uint64_t n, Duration timeout) const {
  return on(impl_, [&](auto& impl) { return impl.windows().raise(*state_, index, n, timeout); });
}
Result<std::uint64_t> Window::wait_signal(std::uint32_t index, std::uint64_t at_least,
                                          Duration timeout) const {
  return on(impl_, [&](auto& impl) {
    return impl.windows().wait_signal(*state_, index, at_least, timeout);
  });
}

}  // namespace linkspan
