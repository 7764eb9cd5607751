// Peer: each call goes to the EngineImpl and its services.
#include "engine/on_engine_impl.hpp"

namespace linkspan {

using engine::AsyncCalls;
using engine::handle_of;
using engine::HandleAccess;
using engine::on;
using engine::start_call;

namespace {

std::string lookup_at(std::uint64_t peer) { return "lookup at peer " + std::to_string(peer); }

using Pairs = std::vector<engine::Submission::Pair>;

Result<Pairs> pairs_of(std::span<const TransferPart> parts) {
  Pairs pairs;
  pairs.reserve(parts.size());
  for (const TransferPart& each : parts) pairs.push_back({each.local, each.remote, each.shape});
  return pairs;
}

Result<Pairs> pairs_of(std::span<const Region> local, std::span<const RemoteRegion> remote,
                       const Shape& shape) {
  if (local.size() != remote.size())
    return Status(Code::invalid_argument, Scope::request,
                  std::to_string(local.size()) + " local regions and " +
                      std::to_string(remote.size()) + " of the peer: give as many of both");
  Pairs pairs;
  pairs.reserve(local.size());
  for (std::size_t i = 0; i < local.size(); ++i) pairs.push_back({local[i], remote[i], shape});
  return pairs;
}

Result<Pairs> pairs_of(std::span<const Region> local, std::span<const RemoteRegion> remote,
                       std::span<const Shape> shapes) {
  if (local.size() != remote.size() || local.size() != shapes.size())
    return Status(Code::invalid_argument, Scope::request,
                  std::to_string(local.size()) + " local regions, " +
                      std::to_string(remote.size()) + " of the peer and " +
                      std::to_string(shapes.size()) + " shapes: give as many of each");
  Pairs pairs;
  pairs.reserve(local.size());
  for (std::size_t i = 0; i < local.size(); ++i) pairs.push_back({local[i], remote[i], shapes[i]});
  return pairs;
}

Result<Transfer> submit(const std::shared_ptr<engine::EngineImpl>& impl, std::uint64_t peer, Op op,
                        const Result<Pairs>& pairs, const TransferOptions& options) {
  if (!pairs.ok()) return pairs.status();
  return handle_of<Transfer>(
      impl, [&](auto& its) { return its.submission.submit(peer, op, *pairs, options); });
}

Result<Prepared> prepare(const std::shared_ptr<engine::EngineImpl>& impl, std::uint64_t peer, Op op,
                         const Result<Pairs>& pairs) {
  if (!pairs.ok()) return pairs.status();
  return handle_of<Prepared>(impl,
                             [&](auto& its) { return its.submission.prepare(peer, op, *pairs); });
}

}  // namespace

Peer::Peer(std::shared_ptr<engine::EngineImpl> impl, std::uint64_t id, std::string name)
    : impl_(std::move(impl)), id_(id), name_(std::move(name)) {}
PeerState Peer::state() const {
  return impl_ == nullptr || impl_->forked() ? PeerState::gone : impl_->state(id_);
}
Status Peer::close(Duration timeout) const {
  return on(impl_, [&](auto& impl) { return impl.close(id_, timeout); });
}
Result<RemoteRegion> Peer::lookup(std::string_view name, Duration timeout) const {
  return handle_of<RemoteRegion>(impl_,
                                 [&](auto& its) { return its.imports.lookup(id_, name, timeout); });
}
Result<std::vector<RemoteRegion>> Peer::lookup_all(std::span<const std::string> names,
                                                   Duration timeout) const {
  return on(impl_, [&](auto& impl) -> Result<std::vector<RemoteRegion>> {
    auto found = impl.services().imports.lookup_all(id_, names, timeout);
    if (!found.ok()) return found.status();
    return HandleAccess::regions(impl_, *std::move(found));
  });
}
Result<RegionSet> Peer::lookup_set(std::string_view name, Duration timeout,
                                   const RegionSet& known) const {
  return on(impl_, [&](auto& impl) -> Result<RegionSet> {
    std::vector<std::shared_ptr<engine::ImportedRegion>> imported;
    for (const RemoteRegion& region : known.regions)
      if (HandleAccess::owner(region) == impl_.get())
        imported.push_back(HandleAccess::imported(region));
    auto found = impl.services().imports.lookup_set(id_, name, timeout, imported);
    if (!found.ok()) return found.status();
    return RegionSet{.version = found->version,
                     .regions = HandleAccess::regions(impl_, std::move(found->regions))};
  });
}
Future<RemoteRegion> Peer::lookup_async(std::string_view name, Duration timeout) const {
  return start_call<RemoteRegion>(
      impl_, &AsyncCalls::lookups, lookup_at(id_), timeout,
      [peer = *this, name = std::string(name)](Duration left) { return peer.lookup(name, left); });
}
Future<RegionSet> Peer::lookup_set_async(std::string_view name, Duration timeout,
                                         const RegionSet& known) const {
  return start_call<RegionSet>(impl_, &AsyncCalls::lookups, lookup_at(id_), timeout,
                               [peer = *this, name = std::string(name), known](Duration left) {
                                 return peer.lookup_set(name, left, known);
                               });
}
Result<std::uint64_t> Peer::await_version(std::string_view name, std::uint64_t above,
                                          Duration timeout) const {
  return on(impl_, [&](auto& impl) {
    return impl.services().imports.await_version(id_, name, above, timeout);
  });
}
Result<Transfer> Peer::write(const Region& local, const RemoteRegion& remote, const Shape& shape,
                             const TransferOptions& options) const {
  return handle_of<Transfer>(impl_, [&](auto& its) {
    return its.submission.submit(id_, Op::write, local, remote, shape, options);
  });
}
Result<Transfer> Peer::read(const Region& local, const RemoteRegion& remote, const Shape& shape,
                            const TransferOptions& options) const {
  return handle_of<Transfer>(impl_, [&](auto& its) {
    return its.submission.submit(id_, Op::read, local, remote, shape, options);
  });
}
Result<Transfer> Peer::write(std::span<const TransferPart> parts,
                             const TransferOptions& options) const {
  return submit(impl_, id_, Op::write, pairs_of(parts), options);
}
Result<Transfer> Peer::write(std::span<const Region> local, std::span<const RemoteRegion> remote,
                             const Shape& shape, const TransferOptions& options) const {
  return submit(impl_, id_, Op::write, pairs_of(local, remote, shape), options);
}
Result<Transfer> Peer::write(std::span<const Region> local, std::span<const RemoteRegion> remote,
                             std::span<const Shape> shapes, const TransferOptions& options) const {
  return submit(impl_, id_, Op::write, pairs_of(local, remote, shapes), options);
}
Result<Transfer> Peer::read(std::span<const TransferPart> parts,
                            const TransferOptions& options) const {
  return submit(impl_, id_, Op::read, pairs_of(parts), options);
}
Result<Transfer> Peer::read(std::span<const Region> local, std::span<const RemoteRegion> remote,
                            const Shape& shape, const TransferOptions& options) const {
  return submit(impl_, id_, Op::read, pairs_of(local, remote, shape), options);
}
Result<Transfer> Peer::read(std::span<const Region> local, std::span<const RemoteRegion> remote,
                            std::span<const Shape> shapes, const TransferOptions& options) const {
  return submit(impl_, id_, Op::read, pairs_of(local, remote, shapes), options);
}
Result<Prepared> Peer::prepare(Op op, const Region& local, const RemoteRegion& remote,
                               const Shape& shape) const {
  return handle_of<Prepared>(
      impl_, [&](auto& its) { return its.submission.prepare(id_, op, local, remote, shape); });
}
Result<Prepared> Peer::prepare(Op op, std::span<const TransferPart> parts) const {
  return linkspan::prepare(impl_, id_, op, pairs_of(parts));
}
Result<Prepared> Peer::prepare(Op op, std::span<const Region> local,
                               std::span<const RemoteRegion> remote, const Shape& shape) const {
  return linkspan::prepare(impl_, id_, op, pairs_of(local, remote, shape));
}
Result<Prepared> Peer::prepare(Op op, std::span<const Region> local,
                               std::span<const RemoteRegion> remote,
                               std::span<const Shape> shapes) const {
  return linkspan::prepare(impl_, id_, op, pairs_of(local, remote, shapes));
}
Result<Transfer> Peer::send(std::uint64_t tag, const void* data, std::uint64_t bytes,
                            const TransferOptions& options) const {
  return handle_of<Transfer>(impl_, [&](auto& its) {
    return its.messages.submit(id_, {.sends = true, .tag = tag}, data, bytes, options);
  });
}
Result<Transfer> Peer::recv(std::uint64_t tag, void* data, std::uint64_t bytes,
                            const TransferOptions& options) const {
  return handle_of<Transfer>(impl_, [&](auto& its) {
    return its.messages.submit(id_, {.sends = false, .tag = tag}, data, bytes, options);
  });
}
Result<Window> Peer::window(const WindowOptions& options) const {
  return handle_of<Window>(impl_, [&](auto& its) { return its.windows.open(id_, options); });
}
Status Peer::notify(std::span<const std::byte> message) const {
  return on(impl_, [&](auto& impl) { return impl.notify(id_, message); });
}
Result<Explanation> Peer::explain(Op op, const Region& local, const RemoteRegion& remote,
                                  std::uint64_t blocks, std::uint64_t bytes,
                                  const TransferOptions& options) const {
  return on(impl_, [&](auto& impl) -> Result<Explanation> {
    const auto between = impl.services().submission.resolve(id_, op, local, remote);
    if (!between.ok()) return between.status();
    return impl.services().submission.explain_failover(
        *between, {.blocks = blocks, .bytes = bytes, .hints = engine::hints_of(options)});
  });
}

}  // namespace linkspan
