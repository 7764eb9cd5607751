#include "transport/local/endpoint.hpp"

#include <algorithm>

#include "copy/chooser.hpp"
#include "copy/cma.hpp"
#include "transport/batch.hpp"

namespace linkspan::transport::local {
namespace {

using Where = Route::Where;

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

Status LocalEndpoint::post(const Batch& batch) {
  const base::MutexLock lock(transport_.copiers.mutex);
  if (Status status = ready(); !status.ok()) return status;
  const auto& mapping = static_cast<const LocalMapping&>(*batch.remote);
  const auto& memory = mapping.memory();
  if (memory->key().id.incarnation != peer_.incarnation)
    return {Code::invalid_argument, Scope::request, "the remote region is another peer's"};
  const Permissions allowed = memory->key().peers;
  if (!(batch.op == Op::write ? allowed.write : allowed.read))
    return {Code::permission_denied, Scope::request,
            std::string("the peer does not permit to ") +
                (batch.op == Op::write ? "write to" : "read from") + " this region"};
  auto shape = batch.checked ? Result<CheckedShape>(already_checked(batch.shape))
                             : check_shape(batch.shape, batch.local->bytes(), batch.remote->bytes(),
                                           transport_.capabilities());
  if (!shape.ok()) return shape.status();
  if (batch.hints.checksum)
    return {Code::unsupported, Scope::request, "what is copied inside a host has no checksum"};
  shape->size.hints = batch.hints;
  shape->size.indices_gpu = batch.indices_gpu;
  if (!memory->alive())
    return {Code::unreachable, Scope::request, "the peer has deregistered the region"};
  if (ours_ >= transport_.capabilities().max_inflight) return Status::no_resource();
  LocalPath& path = mapping.last_path();
  const auto local = transport_.update(path, *batch.local, *memory);
  if (local == nullptr)
    return {Code::invalid_argument, Scope::request, "the local region is not registered here"};

  LocalInflightBatch& inflight = inflight_.emplace_back();
  inflight.id = batch.cookie;
  inflight.op = batch.op;
  inflight.remote = memory;
  inflight.target = local;
  inflight.kept = static_cast<const PinnedPages*>(batch.kept);
  inflight.first = batch.first;
  inflight.ctas = batch.hints.ctas;
  if (Status status = begin(inflight, *local, path, *std::move(shape), batch.streams);
      !status.ok()) {
    inflight_.pop_back();
    return status;
  }
  inflight.reported_path = batch.path_taken;
  if (inflight.reported_path != nullptr) *inflight.reported_path = inflight.path;
  ++ours_;
  return {};
}

/// Chooses a route and starts on it. After an error nothing has begun. Only the copy kernel takes
/// pages as they are; other copiers get blocks.
Status LocalEndpoint::begin(LocalInflightBatch& inflight, const PublishedRegion& local,
                            const LocalPath& path, CheckedShape shape,
                            const StreamDependencies& streams) {
  const auto not_in_a_stream = [] {
    return Status(Code::unsupported, Scope::request, "no GPU of this process copies it");
  };
  if (shape.size.blocks == 0) {
    if (streams.after != nullptr) return not_in_a_stream();
    inflight.state = BatchState::ended;
    return {};
  }
  const ImportedMemory& remote = *inflight.remote;
  const RouteFacts f = facts(inflight.op, local, remote, path, shape.size, inflight.for_peer);
  const Route chosen = route(f);
  const bool resident = chosen.method == copy::Method::resident;
  const bool by_gpu =
      chosen.where == Where::here && (resident || chosen.method == copy::Method::copy_engine ||
                                      chosen.method == copy::Method::sm_kernel);
  inflight.path = {.path = path_of(f, chosen), .by_peer = chosen.where == Where::peer};
  const bool by_index =
      shape.pages != nullptr && by_gpu && chosen.method == copy::Method::sm_kernel;
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
    Status status = request_copy(inflight, local, remote.key().id.serial, inflight.blocks);
    if (status.ok()) expect_end(inflight, chosen.method, f.link, f.shape.bytes);
    return status;
  }
  if (chosen.where == Where::nowhere)  // `unsupported` makes the peer try another route
    return {inflight.for_peer ? Code::unsupported : Code::unreachable, Scope::request,
            "no path between " + std::string(name_of(f.local)) + " memory here and " +
                std::string(name_of(f.remote)) + " memory of " + peer_name() +
                "; not mapped: " + remote.why_not_mapped() +
                (cross_process().ok() ? "" : "; no cross-process copy: " + cross_process().what())};

  inflight.method = chosen.method;
  inflight.mapped = f.mapped;
  inflight.link = f.link;
  inflight.device = path.device;
  std::uint64_t there = on_gpu(f.remote) ? path.remote_address : remote.host_address();
  if (chosen.method == copy::Method::cross_process) there = remote.key().address;
  inflight.copier = transport_.copiers.cpu.get();
  if (by_gpu) {
    inflight.copier = nullptr;
    if (path.copiers != nullptr && resident) inflight.copier = path.copiers->resident.get();
    if (path.copiers != nullptr && !resident) inflight.copier = path.copiers->usual.get();
  }
  if (inflight.copier == nullptr)
    return {Code::internal, Scope::request, "no copier for a GPU that is up"};

  if (shape.size.gpu_indices && shape.size.indices_gpu != GpuUuid{} &&
      shape.size.indices_gpu != inflight.device->info().uuid)
    return {Code::invalid_argument, Scope::request,
            "the page indices are in memory of another GPU than GPU " +
                std::to_string(inflight.device->info().ordinal) +
                ", which copies: put them there, or into pinned memory"};
  const std::uint64_t here = local.region->facts().address;
  by_index ? place(inflight, here, there, *shape.pages)
           : place(inflight, here, there, shape.blocks());
  inflight.state = BatchState::copying;
  Status status = start_some(inflight, streams);
  // advance() tries again, except after an event, which is valid during this call only.
  if (status.code() != Code::no_resource || streams.after != nullptr) return status;
  if (by_index &&
      inflight.pages.to_list == 0) {  // the user's lists are valid during this call only
    inflight.indices.assign(inflight.pages.to_index.begin(), inflight.pages.to_index.end());
    inflight.indices.insert(inflight.indices.end(), inflight.pages.from_index.begin(),
                            inflight.pages.from_index.end());
    const std::span<const std::uint32_t> kept(inflight.indices);
    inflight.pages.to_index = kept.first(kept.size() / 2);
    inflight.pages.from_index = kept.last(kept.size() / 2);
  }
  return {};
}

/// Turns offsets into addresses.
void LocalEndpoint::place(LocalInflightBatch& inflight, std::uint64_t here, std::uint64_t there,
                          std::span<const Block> blocks) {
  inflight.pieces.reserve(blocks.size());
  for (const Block& b : blocks) {
    copy::Piece piece{
        .to = there + b.remote_offset, .from = here + b.local_offset, .bytes = b.bytes};
    if (inflight.op == Op::read) std::swap(piece.to, piece.from);
    inflight.pieces.push_back(piece);
  }
}

void LocalEndpoint::place(LocalInflightBatch& inflight, std::uint64_t here, std::uint64_t there,
                          const Pages& pages) {
  const std::uint64_t local_bytes = inflight.target->region->bytes(),
                      remote_bytes = inflight.remote->key().bytes;
  inflight.pages = {.to = there + pages.remote_base,
                    .from = here + pages.local_base,
                    .page_bytes = pages.page_bytes,
                    .to_index = pages.remote_index,
                    .from_index = pages.local_index,
                    .to_last = last_page(pages.remote_base, pages.page_bytes, remote_bytes),
                    .from_last = last_page(pages.local_base, pages.page_bytes, local_bytes),
                    .first = inflight.first};
  if (pages.indices_on_gpu) {
    inflight.pages.to_list = reinterpret_cast<std::uintptr_t>(pages.remote_index.data());
    inflight.pages.from_list = reinterpret_cast<std::uintptr_t>(pages.local_index.data());
  }
  if (inflight.kept != nullptr) {
    const std::uint64_t skipped = inflight.first * sizeof(std::uint32_t);
    inflight.pages.to_list = inflight.kept->remote + skipped;
    inflight.pages.from_list = inflight.kept->local + skipped;
  }
  if (inflight.op == Op::read) {
    std::swap(inflight.pages.to, inflight.pages.from);
    std::swap(inflight.pages.to_index, inflight.pages.from_index);
    std::swap(inflight.pages.to_list, inflight.pages.from_list);
    std::swap(inflight.pages.to_last, inflight.pages.from_last);
  }
}

/// Estimates when a request ends; the peer runs requests one after the other.
void LocalEndpoint::expect_end(LocalInflightBatch& inflight, copy::Method method, copy::Link link,
                               std::uint64_t bytes) {
  inflight.polled = base::Clock::steady().now();
  inflight.due = std::max(inflight.polled, last_request_due_) +
                 copy::earliest_time(method, link, bytes, copy::kUsualThreads);
  last_request_due_ = inflight.due;
}

Status LocalEndpoint::send(LocalMessage message, std::span<const std::byte> bytes,
                           std::span<base::Fd> fds) {
  return channel_.send(static_cast<std::uint16_t>(message), bytes, fds);
}

void LocalEndpoint::close() {
  const base::MutexLock lock(transport_.copiers.mutex);
  closed_ = true;
  for (LocalInflightBatch& inflight : inflight_) stop(inflight);
}

}  // namespace linkspan::transport::local
