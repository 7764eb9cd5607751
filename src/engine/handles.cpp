// The public handles: each call goes to the Core.
#include "engine/core.hpp"

namespace linkspan {

using namespace std::chrono_literals;

// Engine
Engine::Engine(std::shared_ptr<engine::Core> core) : core_(std::move(core)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&& other) noexcept {
  Engine old(std::move(*this));
  core_ = std::move(other.core_);
  return *this;
}
Engine::~Engine() {
  // Where memory is still in use, what watches over it stays until the process ends.
  if (core_ != nullptr && !core_->close(5s).ok()) core_->stay();
}
Result<Engine> Engine::open(const EngineOptions& options) {
  auto core = engine::Core::open(options);
  if (!core.ok()) return core.status();
  return Engine(*std::move(core));
}
Result<Region> Engine::register_memory(void* pointer, std::uint64_t bytes,
                                       const RegionOptions& options) {
  return core_->register_memory(pointer, bytes, options);
}
Result<Region> Engine::allocate_shared(std::uint64_t bytes, const RegionOptions& options) {
  return core_->allocate_shared(bytes, options);
}
Status Engine::publish(std::string_view name, const Region& region) {
  return core_->publish(name, region);
}
Status Engine::deregister(const Region& region, Duration timeout) {
  return core_->deregister(region, timeout);
}
Status Engine::listen(std::string_view address) { return core_->listen(address); }
std::string Engine::address() const { return core_->address(); }
Result<Peer> Engine::connect(std::string_view address, Duration timeout) {
  return core_->connect(address, timeout);
}
Result<Peer> Engine::accept(Duration timeout) { return core_->accept(timeout); }
Status Engine::send_ipc(std::uint64_t conn_id, const void* data, std::size_t bytes,
                        Duration deadline) {
  return core_->finish(send_ipc_async(conn_id, data, bytes, deadline));
}
Status Engine::recv_ipc(std::uint64_t conn_id, void* data, std::size_t bytes, Duration deadline) {
  return core_->finish(recv_ipc_async(conn_id, data, bytes, deadline));
}
Result<Transfer> Engine::send_ipc_async(std::uint64_t conn_id, const void* data, std::size_t bytes,
                                        Duration deadline) {
  return core_->exchange(conn_id, true, control::Space::ipc, 0, data, bytes,
                         {.deadline = deadline});
}
Result<Transfer> Engine::recv_ipc_async(std::uint64_t conn_id, void* data, std::size_t bytes,
                                        Duration deadline) {
  return core_->exchange(conn_id, false, control::Space::ipc, 0, data, bytes,
                         {.deadline = deadline});
}
std::size_t Engine::progress() { return core_->progress(); }
std::vector<Notification> Engine::notifications() { return core_->notifications(); }
std::string Engine::dump() const { return core_->dump(); }
Status Engine::close(Duration timeout) { return core_->close(timeout); }

// Peer
namespace {
Status no_peer() { return {Code::invalid_argument, Scope::request, "the handle names no peer"}; }
}  // namespace
Peer::Peer(std::shared_ptr<engine::Core> core, std::uint64_t id)
    : core_(std::move(core)), id_(id) {}
std::string Peer::name() const { return core_ == nullptr ? "" : core_->peer_name(id_); }
PeerState Peer::state() const { return core_ == nullptr ? PeerState::gone : core_->state(id_); }
Result<RemoteRegion> Peer::lookup(std::string_view name, Duration timeout) const {
  if (core_ == nullptr) return no_peer();
  return core_->lookup(id_, name, timeout);
}
Result<Transfer> Peer::write(const Region& local, const RemoteRegion& remote,
                             std::span<const Block> blocks, const TransferOptions& options) const {
  if (core_ == nullptr) return no_peer();
  return core_->submit(id_, Op::write, local, remote, blocks, options);
}
Result<Transfer> Peer::read(const Region& local, const RemoteRegion& remote,
                            std::span<const Block> blocks, const TransferOptions& options) const {
  if (core_ == nullptr) return no_peer();
  return core_->submit(id_, Op::read, local, remote, blocks, options);
}
Result<Transfer> Peer::write(const Region& local, const RemoteRegion& remote, const Pages& pages,
                             const TransferOptions& options) const {
  if (core_ == nullptr) return no_peer();
  return core_->submit(id_, Op::write, local, remote, pages, options);
}
Result<Transfer> Peer::read(const Region& local, const RemoteRegion& remote, const Pages& pages,
                            const TransferOptions& options) const {
  if (core_ == nullptr) return no_peer();
  return core_->submit(id_, Op::read, local, remote, pages, options);
}
Result<Transfer> Peer::send(std::uint64_t tag, const void* data, std::uint64_t bytes,
                            const TransferOptions& options) const {
  if (core_ == nullptr) return no_peer();
  return core_->exchange(id_, true, control::Space::tags, tag, data, bytes, options);
}
Result<Transfer> Peer::recv(std::uint64_t tag, void* data, std::uint64_t bytes,
                            const TransferOptions& options) const {
  if (core_ == nullptr) return no_peer();
  return core_->exchange(id_, false, control::Space::tags, tag, data, bytes, options);
}
Status Peer::notify(std::span<const std::byte> message) const {
  if (core_ == nullptr) return no_peer();
  return core_->notify(id_, message);
}
Result<Explanation> Peer::explain(Op op, const Region& local, const RemoteRegion& remote,
                                  std::uint64_t blocks, std::uint64_t bytes) const {
  if (core_ == nullptr) return no_peer();
  return core_->explain(id_, op, local, remote, {.blocks = blocks, .bytes = bytes});
}

// Transfer
Transfer::Transfer(std::shared_ptr<engine::Core> core, std::shared_ptr<engine::TransferState> state)
    : core_(std::move(core)), state_(std::move(state)) {}
Status Transfer::wait(Duration timeout) const {
  if (state_ == nullptr) return {Code::invalid_argument, Scope::request, "no transfer"};
  return core_->wait(*state_, timeout);
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
  return core_->cancel(*state_);
}
std::uint64_t Transfer::bytes() const noexcept {
  if (state_ == nullptr) return 0;
  const bool room = state_->exchange != nullptr && !state_->exchange->sends && !done();
  return room ? 0 : state_->bytes;
}
std::uint64_t Transfer::id() const noexcept { return state_ == nullptr ? 0 : state_->id; }

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
std::string Region::describe() const {
  if (registration_ == nullptr) return "no region";
  return std::to_string(bytes()) + " bytes of " + std::string(name_of(kind())) + " memory";
}

// RemoteRegion
RemoteRegion::RemoteRegion(std::shared_ptr<engine::Core> core,
                           std::shared_ptr<engine::ImportedRegion> imported)
    : core_(std::move(core)), imported_(std::move(imported)) {}
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

}  // namespace linkspan
