#include "engine/captures/capture_service.hpp"

#include <algorithm>

#include "base/interrupt.hpp"
#include "cuda/graph.hpp"
#include "engine/diagnostics/report.hpp"
#include "engine/notifications/inbox.hpp"
#include "transport/batch.hpp"

namespace linkspan::engine {
namespace {

using namespace std::chrono_literals;

// How often the ProgressThread looks: for the end of a launch that has a notification, for the end
// of an ending, for the end of a region or a graph, and for that of a graph alone.
constexpr Duration kNotifyInterval = 110us, kEndInterval = 50us, kAliveInterval = 1ms,
                   kGraphInterval = 100ms;
constexpr Duration kSpin = 50us, kWaitInterval = 100us;  // of a thread that waits for launches

Status refuse(Code code, std::string what) { return {code, Scope::request, std::move(what)}; }

/// Adds what a batch copies, between the regions' addresses.
void add_pieces(const transport::BatchShape& shape, Op op, std::uint64_t here, std::uint64_t there,
                std::vector<copy::Piece>& pieces) {
  std::vector<Block> of_pages;
  if (const auto* pages = std::get_if<Pages>(&shape)) of_pages = transport::blocks_of(*pages);
  const auto* const blocks = std::get_if<std::span<const Block>>(&shape);
  for (const Block& b : blocks != nullptr ? *blocks : std::span<const Block>(of_pages)) {
    if (b.bytes == 0) continue;
    const std::uint64_t ours = here + b.local_offset, theirs = there + b.remote_offset;
    pieces.push_back({.to = op == Op::write ? theirs : ours,
                      .from = op == Op::write ? ours : theirs,
                      .bytes = b.bytes});
  }
}

}  // namespace

CaptureService::CaptureService(const EngineContext& context, const StreamOrders& streams,
                               PeerTable& peers)
    : context_(context), streams_(streams), peers_(peers) {
  copy::CapturedCopy::keep_until_graph_ends(nullptr);  // frees those of Engines that have ended
}

CaptureService::~CaptureService() {
  const base::MutexLock lock(mutex_);
  for (const auto& state : all_) {
    state->regions = {};
    if (!state->copy->graph_has_ended()) copy::CapturedCopy::keep_until_graph_ends(state->copy);
  }
}

/// Returns the stream's GPU. It has to be up: to bring it up would wait for work on it.
Result<const cuda::Device*> CaptureService::device_for(const PreparedState& prepared,
                                                       const StreamOrder& stream) const {
  if (stream.kind == StreamOrder::Kind::none)
    return refuse(Code::invalid_argument, "no stream was given to capture into");
  if (context_.topology == nullptr)
    return refuse(Code::unsupported, "a captured post: " + context_.no_gpu.what());
  GpuUuid gpu = stream.gpu;
  for (const PreparedPair& pair : prepared.pairs)
    if (const auto local = pair.region.lock(); local != nullptr && gpu == GpuUuid{})
      gpu = local->region().facts().gpu;
  if (gpu == GpuUuid{})
    return refuse(Code::invalid_argument,
                  "no memory of a GPU is here that could tell whose stream it is: set "
                  "StreamOrder::gpu");
  const cuda::Device* const device = context_.topology->active(gpu);
  if (device == nullptr)
    return refuse(Code::unsupported,
                  "the stream's GPU is not in use by this Engine: register memory of it before "
                  "the capture begins");
  if (device->copy_captured() == nullptr)
    return refuse(Code::unsupported, "no kernel of ours runs on the stream's GPU: " +
                                         (device->kernels().ok() ? "they are not loaded: register "
                                                                   "memory of it before the capture"
                                                                 : device->kernels().what()));
  return device;
}

/// Returns why launches cannot copy between the two, with the path that a post takes.
Status CaptureService::no_path(const TransferEndpoints& between,
                               const transport::BatchSummary& size, const std::string& why) const {
  std::string path;
  if (const auto peer = peers_.find(between.peer))
    if (const auto explained = peer->explain(between, size); explained.ok())
      path = ", and a post takes " +
             (explained->path.empty() ? "no path" : "\"" + explained->path + "\"");
  return refuse(Code::unsupported,
                "a post is captured only where the stream's GPU maps both memories: " + why + path);
}

Status CaptureService::add_pair(const PreparedPair& pair, const cuda::Device& device,
                                CapturedRegions& regions, std::vector<copy::Piece>& pieces) const {
  const auto local = pair.region.lock();
  if (local == nullptr || !local->acquire())
    return refuse(Code::invalid_argument, "the local region is not registered in this Engine");
  regions.local.push_back(local);
  TransferEndpoints between = pair;
  between.local = local;
  const memory::Region::Facts& facts = local->region().facts();
  const GpuUuid& gpu = device.info().uuid;
  const bool reached = facts.kind == MemoryKind::device
                           ? facts.gpu == gpu
                           : facts.kind != MemoryKind::host && local->pinned();
  if (!reached)
    return no_path(
        between, pair.size,
        "the local one is " + (facts.kind == MemoryKind::device
                                   ? "memory of another GPU"
                                   : std::string(name_of(facts.kind)) + " memory without a pin"));
  const CapturedRegions::Remote remote{pair.remote, pair.transport};
  const transport::Mapping& mapping = *pair.remote->mappings[pair.transport];
  const Permissions allowed = mapping.permissions();
  if (!(pair.op == Op::write ? allowed.write : allowed.read))
    return refuse(Code::permission_denied,
                  std::string("the peer does not permit to ") +
                      (pair.op == Op::write ? "write to \"" : "read from \"") + pair.remote->name +
                      "\"");
  auto view = context_.transports[pair.transport]->reach(mapping, gpu);
  if (!remote
           .alive())  // after reach(): a region that is alive is not unmapped before its view ends
    return refuse(Code::unreachable,
                  "the peer has taken \"" + pair.remote->name + "\" out of registration");
  if (!view.ok()) return no_path(between, pair.size, view.status().what());
  regions.remote.push_back(remote);
  regions.keepalives.push_back(std::move(view->keepalive));
  std::vector<Block> scratch;
  for (std::size_t i = 0; i < pair.copied.plan->batches; ++i)
    add_pieces(pair.copied.plan->batch(i, scratch), pair.op, facts.address, view->address, pieces);
  return {};
}

CaptureService::Captured CaptureService::capture(const PreparedState& prepared,
                                                 const StreamOrder& stream,
                                                 const CaptureOptions& options) {
  if (options.notification.size() > Inbox::kMaxMessage)
    return refuse(Code::invalid_argument,
                  "a notification of " + std::to_string(options.notification.size()) +
                      " bytes; at most " + std::to_string(Inbox::kMaxMessage));
  const std::uint64_t peer = prepared.pairs.front().peer;
  const auto usable = peers_.usable(peer);
  if (!usable.ok()) return usable.status();
  const auto device = device_for(prepared, stream);
  if (!device.ok()) return device.status();
  const auto user = streams_.find(stream, (*device)->info().uuid);
  if (!user.ok()) return user.status();
  const auto scope = (*device)->enter();
  if (!scope.ok()) return scope.status();
  const auto graph = cuda::captured_graph(*scope, user->handle);
  if (!graph.ok()) return graph.status();
  if (*graph == nullptr)
    return refuse(Code::invalid_argument,
                  "the stream captures no CUDA graph: begin the capture before, or post()");
  CapturedRegions regions;
  std::vector<copy::Piece> pieces;
  for (std::size_t i = 0; i < prepared.pairs.size(); ++i)
    if (Status status = add_pair(prepared.pairs[i], **device, regions, pieces); !status.ok())
      return prepared.pairs.size() == 1 ? status : status_of_pair(i, status);
  const auto sms = static_cast<unsigned>((*device)->info().sm_count);
  const unsigned ctas =
      std::min({sms, context_.options.copy_ctas.value_or(sms), options.copy_ctas.value_or(sms)});
  if (ctas == 0)
    return refuse(Code::unsupported, "a captured post is a kernel, and copy_ctas is 0");
  auto node = copy::CapturedCopy::create(context_.topology, **device, pieces, ctas);
  if (!node.ok()) return node.status();
  // Shared with the handles, and until its graph has ended with the list.
  const auto state = std::make_shared<CapturedState>(peer, prepared.size.bytes, *std::move(node),
                                                     options.notification, std::move(regions));
  {
    const base::MutexLock lock(mutex_);
    if (!refusal_.ok()) return refusal_;
    all_.push_back(state);
  }
  const Status recorded = state->copy->record(*scope, user->handle, *graph);
  if ((*usable)->state() != PeerState::up) end(peer, not_connected(peer));  // it was lost meanwhile
  context_.progress->wake();
  if (recorded.ok()) return state;
  const base::MutexLock lock(mutex_);
  end(*state, recorded);
  return recorded;
}

void CaptureService::end(CapturedState& state, const Status& why) {
  if (!state.end.ok()) return;
  state.end = why;
  state.copy->close_gate();
}

/// Sends the notifications of launches that have completed. Returns whether anything has changed.
bool CaptureService::notify(CapturedState& state) {
  const std::uint64_t before = state.notified, completed = state.copy->completed();
  if (state.notification.empty()) state.notified = std::max(before, completed);
  while (state.notified < completed) {
    const auto peer = peers_.find(state.peer);
    const Status status =
        peer != nullptr ? peer->notify(state.notification) : not_connected(state.peer);
    if (status.code() == Code::no_resource) break;  // no room: at the next call
    state.notified = status.ok() ? state.notified + 1 : completed;
  }
  return state.notified != before;
}

/// Makes progress. Adds the regions of one that has become quiet to `released`, which ends without
/// the mutex.
bool CaptureService::advance(CapturedState& state, std::vector<CapturedRegions>& released) {
  bool moved = false;
  if (!state.quiet) {
    for (const auto& remote : state.regions.remote)
      if (state.end.ok() && !remote.alive())
        end(state, refuse(Code::unreachable, "the peer has taken \"" + remote.region->name +
                                                 "\" out of registration"));
    if (state.copy->graph_has_ended())
      end(state, refuse(Code::canceled, "the graph and all its executables were destroyed"));
    if (!state.end.ok() && state.copy->is_quiet()) {
      moved = state.quiet = true;
      released.push_back(std::exchange(state.regions, {}));
    }
  }
  if (notify(state)) moved = true;
  return moved;
}

transport::PollHint CaptureService::serve() {
  using When = transport::PollHint::When;
  std::vector<CapturedRegions> released;  // ends after the lock
  const base::MutexLock lock(mutex_);
  if (all_.empty()) return {};
  const base::Time now = base::Clock::steady().now();
  bool moved = false;
  Duration next = kGraphInterval;
  for (const auto& state : all_) {
    moved |= advance(*state, released);
    if (!state->end.ok() && !state->quiet)
      next = std::min(next, kEndInterval);
    else if (!state->drained() || (state->end.ok() && !state->notification.empty()))
      next = std::min(next, kNotifyInterval);
    else if (state->end.ok())
      next = std::min(next, kAliveInterval);
  }
  std::erase_if(
      all_, [](const auto& state) { return state->drained() && state->copy->graph_has_ended(); });
  if (moved) changed_.notify_all();
  if (moved) return {.when = When::now, .moved = true};
  return {.when = When::at, .at = now + next, .patient = next > kNotifyInterval};
}

void CaptureService::end(std::optional<std::uint64_t> peer, const Status& why) {
  const base::MutexLock lock(mutex_);
  for (const auto& state : all_)
    if (!peer || state->peer == *peer) end(*state, why);
  if (!peer && refusal_.ok()) refusal_ = why;
  context_.progress->wake();
}

void CaptureService::end_on(const memory::Registration& region) {
  {
    const base::MutexLock lock(mutex_);
    for (const auto& state : all_)
      if (std::ranges::any_of(state->regions.local,
                              [&](const auto& each) { return each.get() == &region; }))
        end(*state, refuse(Code::invalid_argument, "the local region was deregistered"));
  }
  (void)serve();
}

/// Waits until all states for which `which` returns true are drained.
Status CaptureService::finish(base::Deadline deadline,
                              const std::function<bool(const CapturedState&)>& which) {
  base::InterruptPoll poll;
  for (;;) {
    (void)serve();
    if (poll.due_and_interrupted()) return base::interrupted();
    const base::MutexLock lock(mutex_);
    const auto left = std::ranges::find_if(
        all_, [&](const auto& state) { return which(*state) && !state->drained(); });
    if (left == all_.end()) return {};
    if (deadline.passed())
      return refuse(Code::pending,
                    "peer " + std::to_string((*left)->peer) +
                        ((*left)->quiet ? " has no room for the notification of a captured post"
                                        : ": a launch of a captured post is not quiet"));
    changed_.wait(mutex_, base::Deadline::in(std::min<Duration>(deadline.left(), kEndInterval)));
  }
}

Status CaptureService::finish(std::optional<std::uint64_t> peer, const Status& why,
                              base::Deadline deadline) {
  end(peer, why);
  return finish(deadline, [&](const auto& state) { return !peer || state.peer == *peer; });
}

Status CaptureService::close(CapturedState& state, Duration timeout) {
  {
    const base::MutexLock lock(mutex_);
    end(state, refuse(Code::canceled, "CapturedTransfer::close() was called"));
  }
  context_.progress->wake();
  return finish(base::Deadline::in(timeout), [&](const auto& each) { return &each == &state; });
}

Status CaptureService::status(const CapturedState& state) {
  const base::MutexLock lock(mutex_);
  return state.end;
}

Status CaptureService::wait(CapturedState& state, std::uint64_t launches, Duration timeout) {
  const base::Deadline deadline = base::Deadline::in(timeout);
  const base::Deadline spin = base::Deadline::in(kSpin);
  base::InterruptPoll poll;
  for (;;) {
    const std::uint64_t completed = state.copy->completed();
    if (completed >= launches) {
      (void)serve();  // the notification goes now, and not when the ProgressThread looks
      return {};
    }
    if (deadline.passed())
      return refuse(Code::pending, std::to_string(completed) + " launches have completed, not " +
                                       std::to_string(launches));
    if (!spin.passed()) continue;
    if (poll.due_and_interrupted()) return base::interrupted();
    const base::MutexLock lock(mutex_);
    if (state.quiet && state.copy->completed() < launches) return state.end;
    changed_.wait(mutex_, base::Deadline::in(std::min<Duration>(deadline.left(), kWaitInterval)));
  }
}

std::string CaptureService::dump() {
  Listing listed("captured posts");
  std::string text;
  const base::MutexLock lock(mutex_);
  for (const auto& state : all_) {
    if (!listed.room()) continue;
    text += "captured post of " + std::to_string(state->bytes) + " bytes with peer " +
            std::to_string(state->peer) + ": " + std::to_string(state->copy->completed()) +
            " launches completed, " + std::to_string(state->copy->refused()) + " refused";
    if (!state->end.ok()) text += (state->quiet ? "; ended: " : "; ending: ") + state->end.what();
    text += "\n";
  }
  return text + listed.more();
}

}  // namespace linkspan::engine
