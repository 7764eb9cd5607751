#include "transport/local/endpoint.hpp"

#include <algorithm>

#include "copy/chooser.hpp"
#include "copy/cma.hpp"
#include "transport/batch.hpp"

namespace linkspan::transport::local {
namespace {

using Where = Route::Where;

/// Maximum of what post() copies itself.
constexpr std::uint64_t kAtOnceBytes = 4096;

Status not_registered() {
  return {Code::invalid_argument, Scope::request, "the local region is not registered here"};
}

}  // namespace

LocalEndpoint::LocalEndpoint(LocalTransport& transport, const LocalAddress& peer, Channel& channel,
                             unsigned copy_queue_index, base::Deadline)
    : transport_(transport),
      peer_(peer),
      channel_(channel),
      copy_queue_index_(copy_queue_index),
      proof_{.address = peer.proof_address, .bytes = peer.proof},
      cross_process_(may_copy_across()) {}

LocalEndpoint::~LocalEndpoint() { transport_.remove(*this); }

/// Runs on the control thread, so it reads no memory of the peer, which may never answer.
Status LocalEndpoint::may_copy_across() const {
  const PeerProcess process = channel_.process();
  if (peer_.process == base::this_process())
    return {Code::unsupported, Scope::request, "it is this process"};
  if (process.pid <= 0)
    return {Code::unsupported, Scope::request, "the peer is in another pid namespace"};
  // The kernel would let root in, and the pid may by then belong to a program with more rights.
  if (!process.same_user) return {Code::unsupported, Scope::request, "the peer is another user's"};
  return copy::may_copy_across(process.pid);
}

Status LocalEndpoint::cross_process() const {
  if (proof_.state != copy::ProcessProof::ProofState::wrong) return cross_process_;
  return {Code::unsupported, Scope::request, "another process has the peer's number here"};
}

Status LocalEndpoint::ready() const {
  if (closed_) return {Code::canceled, Scope::peer, "the endpoint is closed"};
  if (terminated_) return {Code::disconnected, Scope::peer, "peer " + peer_name() + " is gone"};
  return {};
}

Status LocalEndpoint::check(Op op, const BatchPair& pair) const {
  const auto refuse = [](Code code, std::string what) {
    return Status(code, Scope::request, std::move(what));
  };
  const auto& mapping = static_cast<const LocalMapping&>(*pair.remote);
  LocalPath& path = mapping.last_path();
  if (!transport_.update(path, *pair.local, *mapping.memory())) return not_registered();
  if (path.owner != peer_.incarnation)
    return refuse(Code::invalid_argument, "the remote region is another peer's");
  if (!(op == Op::write ? path.permissions.write : path.permissions.read))
    return refuse(Code::permission_denied, std::string("the peer does not permit to ") +
                                               (op == Op::write ? "write to" : "read from") +
                                               " this region");
  if (!path.liveness.alive())
    return refuse(Code::unreachable, "the peer has deregistered the region");
  return {};
}

Result<Posted> LocalEndpoint::post(const Batch& batch) {
  const base::MutexLock lock(transport_.copiers.mutex);
  if (Status status = ready(); !status.ok()) return status;
  if (Status status = check(batch.op, {batch.local, batch.remote}); !status.ok()) return status;
  const auto& mapping = static_cast<const LocalMapping&>(*batch.remote);
  const LocalPath& path = mapping.last_path();
  auto local = path.local.lock();
  if (local == nullptr) return not_registered();  // retracted meanwhile
  auto shape = batch.checked ? Result<CheckedShape>(already_checked(batch.shape))
                             : check_shape(batch.shape, batch.local->bytes(), batch.remote->bytes(),
                                           transport_.capabilities());
  if (!shape.ok()) return shape.status();
  if (batch.hints.checksum)
    return Status(Code::unsupported, Scope::request,
                  "what is copied inside a host has no checksum");
  shape->size.hints = batch.hints;
  shape->size.indices_gpu = batch.indices_gpu;
  if (const auto taken = copy_at_once(batch, path, *shape))
    return Posted{.path = *taken, .ended = true};
  if (ours_ >= transport_.capabilities().max_inflight) return Status::no_resource();

  InflightBatches made(1);
  LocalInflightBatch& inflight = made.front();
  OwnBatch& own = inflight.role.emplace<OwnBatch>();
  own.cookie = batch.cookie;
  inflight.op = batch.op;
  inflight.remote = mapping.memory();
  inflight.target = std::move(local);
  inflight.local_copy.ctas = batch.hints.ctas;
  join(inflight, batch, path, shape->size);
  Posted posted;
  if (Status status =
          begin(inflight, *inflight.target, path, *std::move(shape), batch, &posted.event);
      !status.ok())
    return status;
  inflight_.splice(inflight_.end(), made);
  posted.path = inflight.path;
  posted.joined = own.joined.size();
  if (own.by_caller || (inflight.state == BatchState::copying && is_for_caller(inflight)))
    posted.callers_copy = {.id = inflight.local_copy.ticket, .now = own.by_caller};
  else if (own.second != nullptr && inflight.remote->prompt())
    posted.callers_copy.id = own.second->id;
  ++ours_;
  return posted;
}

/// Chooses a route and starts on it. After an error nothing has begun. Only the copy kernel takes
/// pages as they are; other copiers get blocks.
Status LocalEndpoint::begin(LocalInflightBatch& inflight, const PublishedRegion& local,
                            const LocalPath& path, CheckedShape shape, const Batch& batch,
                            std::optional<cuda::PooledEvent>* event) {
  const StreamDependencies& streams = batch.streams;
  const auto not_in_a_stream = [] {
    return Status(Code::unsupported, Scope::request, "no GPU of this process copies it");
  };
  if (shape.size.blocks == 0) {
    if (streams.after != nullptr) return not_in_a_stream();
    inflight.state = BatchState::ended;
    return {};
  }
  const ImportedMemory& remote = *inflight.remote;
  const RouteFacts f = facts(inflight.op, local, remote, path, shape.size, inflight.for_peer());
  auto* const own = std::get_if<OwnBatch>(&inflight.role);
  // The kernel takes what join() took.
  const Route chosen = own == nullptr || own->joined.empty()
                           ? route(f)
                           : Route{.where = Where::here, .method = copy::Method::sm_kernel};
  const bool resident = chosen.method == copy::Method::resident;
  const bool by_gpu = chosen.where == Where::here && !chosen.through_slot &&
                      (resident || chosen.method == copy::Method::copy_engine ||
                       chosen.method == copy::Method::sm_kernel);
  inflight.path = {.path = path_of(f, chosen), .by_peer = chosen.where == Where::peer};
  const bool by_index = shape.pages != nullptr && by_gpu &&
                        chosen.method == copy::Method::sm_kernel &&
                        inflight.local_copy.pieces.empty();  // else the first of several lists
  if (shape.size.gpu_indices && !by_index)
    return {Code::unreachable, Scope::request,
            "page indices on a GPU need the copy kernel of this process, and this transfer takes " +
                std::string(inflight.path.path.empty() ? "no path" : inflight.path.path) +
                (f.why_no_kernel.empty() ? "" : " (" + std::string(f.why_no_kernel) + ")") +
                ": copy the indices to host memory"};
  if (streams.after != nullptr && chosen.where != Where::nowhere && !by_gpu)
    return not_in_a_stream();
  if (shape.pages != nullptr && !by_index) shape.owned = blocks_of(*shape.pages);
  if (chosen.where == Where::peer || chosen.where == Where::both)
    inflight.blocks.assign(shape.blocks().begin(), shape.blocks().end());
  if (chosen.where == Where::both) {
    start_bounce(inflight, chosen);
    return {};
  }
  if (chosen.where == Where::peer) {
    Status status = request_copy(inflight.request, inflight.op, local, remote.key().id.serial,
                                 shape.pages != nullptr ? BatchShape(*shape.pages)
                                                        : std::span<const Block>(inflight.blocks));
    if (!status.ok()) return status;
    expect_end(inflight.request, chosen.method, f.link, f.shape.bytes);
    inflight.state = BatchState::requested;
    return {};
  }
  if (chosen.through_slot)
    return begin_through_slot(inflight, path, chosen.method, shape.blocks(), batch.caller_copies);
  if (chosen.where == Where::nowhere)  // `unsupported` makes the peer try another route
    return {inflight.for_peer() ? Code::unsupported : Code::unreachable, Scope::request,
            "no path between " + std::string(name_of(f.local)) + " memory here and " +
                std::string(name_of(f.remote)) + " memory of " + peer_name() +
                "; not mapped: " + remote.why_not_mapped() +
                (cross_process().ok() ? "" : "; no cross-process copy: " + cross_process().what())};

  inflight.mapped = f.mapped;
  LocalCopy& local_copy = inflight.local_copy;
  local_copy.method = chosen.method;
  local_copy.link = f.link;
  local_copy.device = path.kind.device;
  std::uint64_t there = path.remote_address;
  if (chosen.method == copy::Method::cross_process) there = remote.key().address;
  local_copy.copier = transport_.copiers.cpu.get();
  if (by_gpu) {
    local_copy.copier = nullptr;
    if (path.copiers != nullptr && resident) local_copy.copier = path.copiers->resident.get();
    if (path.copiers != nullptr && !resident) local_copy.copier = path.copiers->usual.get();
  }
  if (local_copy.copier == nullptr)
    return {Code::internal, Scope::request, "no copier for a GPU that is up"};

  if (shape.size.gpu_indices && shape.size.indices_gpu != GpuUuid{} &&
      shape.size.indices_gpu != path.kind.device->info().uuid)
    return {Code::invalid_argument, Scope::request,
            "the page indices are in memory of another GPU than GPU " +
                std::to_string(path.kind.device->info().ordinal) +
                ", which copies: put them there, or into pinned memory"};
  const std::uint64_t here = local.region->facts().address;
  by_index ? inflight.place(here, there, *shape.pages, batch)
           : inflight.place(here, there, shape.blocks());
  inflight.state = BatchState::copying;
  if (own != nullptr)
    own->by_caller = batch.caller_copies && is_for_caller(inflight) &&
                     copy::CpuCopier::is_small(local_copy.pieces);
  Status status = start_some(inflight, streams, event);
  if (own != nullptr && !status.ok()) own->by_caller = false;
  // advance() tries again, except after an event, which is valid during this call only.
  if (status.code() != Code::no_resource || streams.after != nullptr) return status;
  if (by_index) local_copy.keep_indices();
  return {};
}

/// Returns whether the copy waits for none but the kernel, as far as this side can know.
bool LocalEndpoint::is_for_caller(const LocalInflightBatch& inflight) {
  const auto is_prompt = [](const LocalKey& key) {
    return key.kind == MemoryKind::shared || key.anonymous;
  };
  const copy::Method method = inflight.local_copy.method;
  return is_prompt(inflight.target->key) && is_prompt(inflight.remote->key()) &&
         (method == copy::Method::cpu_threads ||
          (method == copy::Method::cross_process && inflight.remote->prompt()));
}

/// Copies little between sealed memories of CPUs for the caller of post(), where the locks of a
/// later end would take longer. Returns the path if it did. All that needs memory comes first.
std::optional<PathTaken> LocalEndpoint::copy_at_once(const Batch& batch, const LocalPath& path,
                                                     CheckedShape& shape) {
  if (!batch.caller_copies || batch.streams.after != nullptr || !path.kind.sealed() ||
      shape.size.gpu_indices || shape.size.blocks == 0 ||
      shape.size.blocks > copy::CpuCopier::kInlinePieces || shape.size.bytes > kAtOnceBytes)
    return std::nullopt;
  const PathTaken taken{.path = path_here(path.kind.mapped, copy::Method::cpu_threads)};
  if (shape.pages != nullptr) shape.owned = blocks_of(*shape.pages);
  for (const Block& block : shape.blocks())
    copy::copy_here(piece_of(batch.op, path.local_address, path.remote_address, block));
  transport_.copiers.count(copy::Method::cpu_threads, shape.size.blocks);
  return taken;
}

/// Returns whether no access to its memory can fail.
bool LocalEndpoint::is_sealed(const LocalInflightBatch& inflight) {
  return inflight.target->key.kind == MemoryKind::shared &&
         inflight.remote->key().kind == MemoryKind::shared;
}

/// Estimates when a request ends; the peer runs requests one after the other.
void LocalEndpoint::expect_end(PeerRequest& request, copy::Method method, copy::Link link,
                               std::uint64_t bytes) {
  request.polled = base::Clock::steady().now();
  request.due = std::max(request.polled, last_request_due_) +
                copy::earliest_time(method, link, bytes, copy::kUsualThreads);
  last_request_due_ = request.due;
}

Status LocalEndpoint::send(LocalMessage message, std::span<const std::byte> bytes,
                           std::span<base::Fd> fds) {
  return channel_.send(static_cast<std::uint16_t>(message), bytes, fds);
}

void LocalEndpoint::close() {
  const base::MutexLock lock(transport_.copiers.mutex);
  closed_ = true;
  for (LocalInflightBatch& inflight : inflight_) inflight.cancel();
}

}  // namespace linkspan::transport::local
