// Progress of the transfers of a LocalEndpoint: pieces are started, canceled and reported.
#include <algorithm>

#include "base/schema/local_generated.h"
#include "copy/chooser.hpp"
#include "transport/local/endpoint.hpp"

namespace linkspan::transport::local {

/// Starts an order of the next pieces. no_resource: the copier accepted none.
Status LocalEndpoint::start_some(LocalInflightBatch& inflight, const StreamDependencies& streams,
                                 std::optional<cuda::PooledEvent>* event) {
  LocalCopy& local_copy = inflight.local_copy;
  unsigned ctas = local_copy.ctas;
  if (local_copy.method == copy::Method::pageable)  // not a GPU's copier
    if (const GpuCopiers* const gpu = transport_.gpu_copiers(local_copy.device))
      ctas = std::min(gpu->usual->ctas(), ctas);
  const std::span<const copy::Piece> wave = local_copy.next_pieces();
  const PeerProcess process = channel_.process();
  const auto* const own = std::get_if<OwnBatch>(&inflight.role);
  auto ticket = local_copy.copier->start(
      {.method = local_copy.method,
       .pieces = wave,
       .pages = local_copy.pages,
       .queue = copy_queue_index_,
       .pid = process.pid,
       .pidfd = process.pidfd,
       .proof = &proof_,
       .prompt = &inflight.remote->prompt(),
       .remote_is_source = inflight.op == Op::read,
       .peer = peer_.incarnation,
       .link = local_copy.link,
       .device = local_copy.device,
       .ctas = ctas,
       .to_gpu = on_gpu(inflight.op == Op::read ? inflight.target->key.kind
                                                : inflight.remote->key().kind),
       .guarded = touches_private_memory(inflight),
       .sealed = is_sealed(inflight),
       .by_caller = own != nullptr && own->by_caller,
       .after = streams.after,
       .stream = streams.stream,
       .release = streams.wants_event && wave.size() == local_copy.pieces.size() ? event : nullptr,
       .actual_method = local_copy.by_gpu() ? &local_copy.method : nullptr});
  if (!ticket.ok()) return ticket.status();
  local_copy.started(*ticket, wave.size());
  return {};
}

void LocalEndpoint::cancel(std::uint64_t cookie) {
  const base::MutexLock lock(transport_.copiers.mutex);
  for (LocalInflightBatch& inflight : inflight_) {
    const BounceStep* const step = inflight.step();
    const auto* own = std::get_if<OwnBatch>(step != nullptr ? &step->parent->role : &inflight.role);
    if (own != nullptr && own->cookie == cookie) inflight.cancel();
  }
}

void LocalEndpoint::advance(LocalInflightBatch& inflight) {
  if (inflight.state == BatchState::opening)
    open_offer(inflight, *std::get<CopyForPeer>(inflight.role).offer);
  if (inflight.state == BatchState::bouncing)
    return add_steps(inflight, *std::get<OwnBatch>(inflight.role).bounced);
  if (inflight.state == BatchState::starting_phase) start_phase(inflight, *inflight.step());
  if (inflight.state == BatchState::requested && poll_completion_flag(inflight.request))
    inflight.state = BatchState::ended;
  if (inflight.state == BatchState::requested && !inflight.waits_for_peer()) {
    flatbuffers::FlatBufferBuilder out;
    out.Finish(schema::CreateCancel(out, inflight.request.id));
    inflight.request.cancel_sent = send(LocalMessage::cancel, finished(out)).ok();
  }
  LocalCopy& local_copy = inflight.local_copy;
  while (inflight.state == BatchState::copying) {
    if (local_copy.ticket != 0) {
      auto end = local_copy.copier->poll(local_copy.ticket);
      if (!end) return;
      local_copy.ticket = 0;
      inflight.end = *std::move(end);
      transport_.copiers.count(local_copy.method, local_copy.blocks_with_copier);
    }
    if (inflight.end.ok() && (local_copy.left() || take_second_copy(inflight))) {
      if (inflight.canceled)
        inflight.end = Status(Code::canceled, Scope::request, "canceled");
      else if (Status status = start_some(inflight); status.ok())
        continue;
      else if (status.code() == Code::no_resource)
        return;
      else
        inflight.end = status;
    }
    inflight.state = BatchState::ended;
  }
}

std::size_t LocalEndpoint::progress(CompletionSink& sink) {
  const base::MutexLock lock(transport_.copiers.mutex);
  send_pending();
  std::size_t completed = 0;
  for (auto inflight = inflight_.begin(); inflight != inflight_.end();) {
    if (inflight->state != BatchState::ended) advance(*inflight);
    if (inflight->state == BatchState::ended && advance_phase(*inflight)) advance(*inflight);
    if (inflight->state != BatchState::ended || !report(*inflight, sink)) {
      ++inflight;
      continue;
    }
    const bool own = std::holds_alternative<OwnBatch>(inflight->role);
    --(own ? ours_ : inflight->for_peer() ? for_peer_ : steps_);
    if (own) ++completed;
    inflight = inflight_.erase(inflight);
  }
  return completed;
}

PollHint LocalEndpoint::poll_hint() const {
  const base::MutexLock lock(transport_.copiers.mutex);
  PollHint hint;
  const base::Time now = base::Clock::steady().now();
  // A side that shuts down answers by its goodbye.
  if (const auto wait = serves_ ? wait_to_send() : std::nullopt)
    hint = {PollHint::When::at, now + *wait};
  for (const LocalInflightBatch& inflight : inflight_) {
    if (inflight.state == BatchState::bouncing) {
      const PollHint bounce =
          bounce_poll_hint(inflight, *std::get<OwnBatch>(inflight.role).bounced, now);
      if (bounce.when == PollHint::When::now) return bounce;
      if (bounce.when == PollHint::When::at &&
          (hint.when == PollHint::When::idle || bounce.at < hint.at))
        hint = {PollHint::When::at, bounce.at, hint.for_peer};
      continue;
    }
    const bool requested = inflight.waits_for_peer();
    const PeerRequest& request = inflight.request;
    const LocalCopy& local_copy = inflight.local_copy;
    if (requested && request.completion_flag == kNoFlag) continue;  // a message reports the end
    hint.for_peer |= inflight.for_peer();
    if (!requested && (inflight.state != BatchState::copying || local_copy.ticket == 0))
      return {.when = PollHint::When::now, .for_peer = hint.for_peer};
    const base::Time due =
        requested ? copy::poll_hint(request.due, request.polled) : local_copy.copier->expected(now);
    if (hint.when == PollHint::When::idle || due < hint.at)
      hint = {PollHint::When::at, due, hint.for_peer};
  }
  return hint;
}

}  // namespace linkspan::transport::local
