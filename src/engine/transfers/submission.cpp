#include "engine/transfers/submission.hpp"

#include <algorithm>
#include <utility>

#include "engine/handle_access.hpp"
#include "engine/notifications/inbox.hpp"
#include "transport/batch.hpp"

namespace linkspan::engine {
namespace {

/// Returns the first transport from `first` on that reaches the region, or the number of
/// transports.
std::size_t transport_from(const ImportedRegion& remote, std::size_t first) {
  while (first < remote.mappings.size() && remote.mappings[first] == nullptr) ++first;
  return first;
}

/// Returns the GPU whose memory has both lists, or zero for pinned memory. Only the ends of a list
/// are checked: between them is the same allocation, or another one mapped after it.
Result<GpuUuid> gpu_of_indices(const cuda::Topology* topology, const Pages& pages) {
  const auto bad = [](const std::string& why) {
    return Status(Code::invalid_argument, Scope::request, "page indices on a GPU " + why);
  };
  if (topology == nullptr) return bad("and no GPU in this process");
  GpuUuid found{};
  for (const auto& list : {pages.local_index, pages.remote_index}) {
    if (reinterpret_cast<std::uintptr_t>(list.data()) % alignof(std::uint32_t) != 0)
      return bad("that are not at a multiple of 4 bytes");
    const auto first = topology->identify(&list.front()), last = topology->identify(&list.back());
    for (const auto& end : {first, last}) {
      if (!end.ok()) return end.status();
      const bool on_gpu = end->kind == MemoryKind::device;
      if (!on_gpu && (end->kind != MemoryKind::pinned || end->buffer_id != first->buffer_id))
        return bad("that lie in " + std::string(name_of(end->kind)) +
                   " memory: put them into one allocation of a GPU or of pinned memory");
      if (on_gpu && found != GpuUuid{} && found != end->gpu)
        return bad("of which some lie in memory of another GPU than the rest");
      if (on_gpu) found = end->gpu;
    }
  }
  return found;
}

}  // namespace

Result<TransferEndpoints> Submission::resolve(std::uint64_t peer, Op op, const Region& local,
                                              const RemoteRegion& remote) const {
  const auto refuse = [](Code code, std::string what) {
    return Status(code, Scope::request, std::move(what));
  };
  if (!remote.valid()) return refuse(Code::invalid_argument, "no remote region was given");
  const ImportedRegion& imported = *HandleAccess::imported(remote);
  if (HandleAccess::owner(remote) != engine_)
    return refuse(Code::invalid_argument,
                  "the remote region \"" + imported.name + "\" is of another Engine's peer");
  if (imported.peer != peer)
    return refuse(Code::invalid_argument, "the remote region \"" + imported.name +
                                              "\" is of peer " + std::to_string(imported.peer) +
                                              ", not of peer " + std::to_string(peer));
  const std::size_t transport = transport_from(imported, 0);
  if (transport == imported.mappings.size())
    return refuse(Code::unreachable, "no transport reaches \"" + imported.name + "\"");
  if (!local.valid()) return refuse(Code::invalid_argument, "no local region was given");
  const auto& registration = HandleAccess::registration(local);
  if (registration->id().incarnation != context_.identity.incarnation || registration->removed())
    return not_registered();
  return TransferEndpoints{.peer = peer,
                           .op = op,
                           .transport = transport,
                           .local = registration,
                           .remote = HandleAccess::imported(remote)};
}

Status Submission::not_registered() {
  return {Code::invalid_argument, Scope::request,
          "the local region is not registered in this Engine"};
}

/// Checks the shape against both regions and plans its batches.
Result<Submission::Planned> Submission::plan(std::size_t transport, const RegionSizes& regions,
                                             const Shape& shape) const {
  constexpr transport::Capabilities kAnySize{.max_batch_bytes = ~std::uint64_t{0},
                                             .max_batch_blocks = ~std::uint64_t{0},
                                             .max_batch_pages = ~std::uint64_t{0}};
  const auto checked = [](Plan plan, const transport::BatchSummary& size) {
    plan.checked = true;
    return Planned{std::move(plan), size};
  };
  const auto [here, there] = regions;
  const transport::Capabilities& limits = context_.transports[transport]->capabilities();
  if (const auto* pages = std::get_if<Pages>(&shape)) {
    if (Status status = transport::check_pages(*pages, here, there, kAnySize); !status.ok())
      return status;
    Result<GpuUuid> gpu = GpuUuid{};
    if (pages->indices_on_gpu && !pages->local_index.empty()) {
      if (!limits.gpu_indices)
        return Status(Code::unsupported, Scope::request,
                      std::string(context_.transports[transport]->name()) +
                          " takes no page indices on a GPU: copy them to host memory");
      if (pages->page_bytes > limits.max_batch_bytes)
        return Status(Code::invalid_argument, Scope::request,
                      "pages of " + std::to_string(pages->page_bytes) +
                          " bytes with indices on a GPU; at most " +
                          std::to_string(limits.max_batch_bytes));
      gpu = gpu_of_indices(context_.topology.get(), *pages);
      if (!gpu.ok()) return gpu.status();
    }
    Planned planned{make_plan(*pages, limits), transport::summary_of(*pages)};
    planned.plan.indices_gpu = *gpu;
    planned.plan.checked = true;
    return planned;
  }
  if (const auto* strides = std::get_if<Strides>(&shape)) {
    if (Status status = transport::check_strides(*strides, here, there, kAnySize); !status.ok())
      return status;
    return checked(make_plan(*strides, limits), transport::summary_of(transport::merged(*strides)));
  }
  const auto list = std::get<std::span<const Block>>(shape);
  if (list.size() == 1) {
    const Block& b = list.front();
    if (Status status = transport::check_block(b, here, there); !status.ok()) return status;
    const Strides one{b.bytes, b.local_offset, b.remote_offset};  // which takes no list
    return checked(make_plan(one, limits), transport::summary_of(one));
  }
  auto blocks = transport::checked_blocks(list, here, there, kAnySize);
  if (!blocks.ok()) return blocks.status();
  const transport::BatchSummary size = transport::summary_of(*blocks);
  return checked(make_plan(*std::move(blocks), limits), size);
}

/// Plans for the first transport whose path is the required one.
Result<Submission::Planned> Submission::plan(TransferEndpoints& between, const Shape& shape,
                                             const TransferOptions& options) const {
  Status refused;
  while (true) {
    auto planned = plan(between, shape);
    if (!planned.ok() || options.require.empty()) return planned;
    planned->size.hints = hints_of(options);
    const Status met = check_path(between, planned->size, options.require);
    if (met.ok()) return planned;
    const bool named = options.require.starts_with(context_.transports[between.transport]->name());
    if (refused.ok() || named) refused = met;
    const std::size_t next = transport_from(*between.remote, between.transport + 1);
    if (next == between.remote->mappings.size()) break;
    between.transport = next;
  }
  for (std::size_t i = 0; i < context_.transports.size(); ++i) {
    if (between.remote->mappings[i] != nullptr || options.require != context_.transports[i]->name())
      continue;
    return Status(refused.code(), refused.scope(),
                  refused.what() + "; the peer has given no key of " + options.require + " for \"" +
                      between.remote->name +
                      "\": it lacks the transport, or that does not take this memory");
  }
  return refused;
}

Status Submission::check_path(const TransferEndpoints& between, const transport::BatchSummary& size,
                              const std::string& required) const {
  if (required.empty()) return {};
  const auto explained = explain(between, size);
  if (!explained.ok()) return explained.status();
  const bool leaves_host = context_.transports[between.transport]->capabilities().leaves_host;
  if (satisfies(explained->path, leaves_host, required)) return {};
  return {Code::unsupported, Scope::request,
          "path \"" + required + "\" was required, this transfer takes " +
              (explained->path.empty() ? "no path" : "\"" + explained->path + "\"") + ": " +
              explained->reason};
}

Submission::Submitted Submission::submit(std::uint64_t peer, Op op, const Region& local,
                                         const RemoteRegion& remote, const Shape& shape,
                                         const TransferOptions& options) const {
  auto between = resolve(peer, op, local, remote);
  if (!between.ok()) return between.status();
  auto planned = plan(*between, shape, options);
  if (!planned.ok()) return planned.status();
  auto transfer = base::make_recycled<TransferState>();
  static_cast<TransferEndpoints&>(*transfer) = *std::move(between);
  transfer->batches.own = std::move(planned->plan);
  transfer->by_user.allowed = true;
  return released(start(std::move(transfer), planned->size, options));
}

std::vector<Submission::Submitted> Submission::write_to_all(const Region& local,
                                                            std::span<const RemoteRegion> targets,
                                                            const Shape& shape,
                                                            const TransferOptions& options) const {
  struct Fits {
    std::size_t transport;
    std::uint64_t bytes;  // of the smallest target that it was checked against
    Planned planned;
  };
  std::optional<Fits> fits;
  const auto start_one = [&](const RemoteRegion& target) -> Result<Started> {
    auto between = resolve(target.peer(), Op::write, local, target);
    if (!between.ok()) return between.status();
    const std::uint64_t bytes = sizes_of(*between).there;
    if (!fits || fits->transport != between->transport || bytes < fits->bytes ||
        !options.require.empty()) {
      auto planned = plan(*between, shape, options);
      if (!planned.ok()) return planned.status();
      fits.emplace(Fits{between->transport, bytes, *std::move(planned)});
    }
    auto transfer = base::make_recycled<TransferState>();
    static_cast<TransferEndpoints&>(*transfer) = *std::move(between);
    transfer->batches.own = fits->planned.plan;
    auto started = start(std::move(transfer), fits->planned.size, options);
    if (started.ok()) started->streams.scope.reset();  // scopes end in the reverse order of entry
    return started;
  };
  std::vector<Result<Started>> started;
  started.reserve(targets.size());
  for (const RemoteRegion& target : targets) started.push_back(start_one(target));
  // Released after all have started: a transfer that starts later would else wait, through the
  // user's stream, for the ones before it.
  std::vector<Submitted> outcomes;
  outcomes.reserve(targets.size());
  for (auto& each : started) outcomes.push_back(released(std::move(each)));
  return outcomes;
}

Result<Submission::Started> Submission::start(std::shared_ptr<TransferState> transfer,
                                              transport::BatchSummary size,
                                              const TransferOptions& options) const {
  size.hints = hints_of(options);
  const auto refuse = [](Code code, std::string what) {
    return Status(code, Scope::request, std::move(what));
  };
  if (options.notification.size() > Inbox::kMaxMessage)
    return refuse(Code::invalid_argument,
                  "a notification of " + std::to_string(options.notification.size()) +
                      " bytes; at most " + std::to_string(Inbox::kMaxMessage));
  GpuUuid gpu{};  // of the first local region that is on one
  for (const TransferEndpoints& pair : transfer->all_pairs()) {
    const transport::Transport& carrier = *context_.transports[pair.transport];
    if (options.checksum && !carrier.capabilities().checksums)
      return refuse(Code::unsupported,
                    std::string(carrier.name()) +
                        " makes no checksums: leave out TransferOptions::checksum, or require "
                        "a transport that makes them (docs/tcp.md)");
    gpu = pair.local->region().facts().gpu;
    if (!options.checksum && gpu != GpuUuid{}) break;
  }
  auto streams = streams_.resolve(options.after, options.release, gpu);
  if (!streams.ok()) return streams.status();
  transfer->bytes = size.bytes;
  transfer->batches.hints = size.hints;
  transfer->batches.failover.allowed = options.failover && options.require.empty();
  transfer->batches.count_all(transfer->all_pairs().size());
  transfer->streams.adopt(*streams);
  transfer->notification.bytes.assign(options.notification.begin(), options.notification.end());
  transfer->ending.submitted = base::Clock::steady().now();
  transfer->ending.deadline = deadline_of(options, transfer->ending.submitted);
  if (context_.options.nvtx)
    transfer->ending.range.begin(transfer->op == Op::write ? "write" : "read", size.bytes);
  const bool one_pair = !transfer->pairs;
  if (one_pair && !transfer->local->acquire())
    return refuse(Code::invalid_argument, "the local region was deregistered");
  const auto peer = peers_.find_active(transfer->peer);
  const Status status = peer == nullptr ? peers_.absent(transfer->peer) : peer->submit(transfer);
  if (!status.ok()) {
    if (one_pair) transfer->local->release();
    return status;
  }
  context_.progress->expect();
  return Started{std::move(transfer), *std::move(streams)};
}

Submission::Submitted Submission::released(Result<Started> started) const {
  if (!started.ok()) return started.status();
  if (started->streams.release.device != nullptr)
    release_stream(*started->transfer, started->streams);
  return std::move(started->transfer);
}

base::Time Submission::deadline_of(const TransferOptions& options, base::Time now) const {
  const Duration deadline =
      options.deadline > Duration::zero() ? options.deadline : context_.options.transfer_deadline;
  return now + std::min(deadline, Duration(base::Time::max() - now));
}

void Submission::release_stream(TransferState& transfer, ResolvedStreams& streams) const {
  StreamRelease release;
  if (const auto peer = peers_.find(transfer.peer))
    // The blocker is known to the transfer before it is armed: an end that comes meanwhile opens
    // it. A closing that begins then waits for the StreamBlocker's stream, and arm() for the
    // closing.
    release = peer->release_stream(transfer, streams.blocker);
  else
    release.event = std::move(transfer.streams.release_event);  // quiet, so nothing else uses it
  if (!release.event && !release.blocks) return;
  Status status;
  if (release.event) {
    const auto scope = streams.release.device->enter();
    status = scope.ok() ? cuda::make_wait(*scope, streams.release.handle, **release.event)
                        : scope.status();
  } else {
    status = streams.blocker->arm(streams.release);
  }
  if (!status.ok() && context_.log.enabled(base::Level::error))
    context_.log.write(base::Level::error, "transfer " + std::to_string(transfer.id) +
                                               " does not hold its stream: " + status.to_string());
}

Submission::Submitted Submission::copy(std::uint64_t peer, Op op, const memory::RegionId& local,
                                       const std::shared_ptr<ImportedRegion>& remote,
                                       std::size_t transport, const Block& block) const {
  auto found = context_.registry->find(local);
  if (found == nullptr) return not_registered();
  auto transfer = base::make_recycled<TransferState>();
  static_cast<TransferEndpoints&>(*transfer) = {
      .peer = peer, .op = op, .transport = transport, .local = std::move(found), .remote = remote};
  auto planned = plan(*transfer, std::span(&block, 1));
  if (!planned.ok()) return planned.status();
  transfer->batches.own = std::move(planned->plan);
  return released(start(std::move(transfer), planned->size, {}));
}

Result<Explanation> Submission::explain(const TransferEndpoints& between,
                                        const transport::BatchSummary& size) const {
  const auto peer = peers_.find(between.peer);
  if (peer == nullptr)
    return Status(Code::disconnected, Scope::peer,
                  "peer " + std::to_string(between.peer) + " is gone");
  return peer->explain(between, size);
}

Result<Explanation> Submission::explain_failover(TransferEndpoints between,
                                                 const transport::BatchSummary& size) const {
  std::vector<PathRefusal> failed;
  while (true) {
    auto explained = explain(between, size);
    if (!explained.ok()) return explained;
    const std::size_t next = transport_from(*between.remote, between.transport + 1);
    if (!explained->path.empty() || next == between.remote->mappings.size()) {
      explained->refused.insert(explained->refused.begin(), failed.begin(), failed.end());
      return explained;
    }
    failed.push_back({std::string(context_.transports[between.transport]->name()),
                      std::move(explained->reason)});
    between.transport = next;
  }
}

}  // namespace linkspan::engine
