// Progress of the transfers of a LocalEndpoint: pieces are started, canceled and reported.
#include <algorithm>

#include "base/schema/local_generated.h"
#include "copy/chooser.hpp"
#include "transport/local/endpoint.hpp"

namespace linkspan::transport::local {
namespace {

/// The most pieces in one order. Copies after those of an order can still be canceled. For the
/// kernel, this many fit one list, however they are cut.
constexpr std::size_t kWaveCopies = 128, kWaveKernel = 8192;

}  // namespace

/// Starts an order of the next pieces. no_resource: the copier accepted none.
Status LocalEndpoint::start_some(LocalInflightBatch& inflight, const StreamDependencies& streams,
                                 std::optional<cuda::PooledEvent>* event) {
  unsigned ctas = inflight.ctas;
  if (inflight.method == copy::Method::pageable)  // not a GPU's copier
    if (const GpuCopiers* const gpu = transport_.gpu_copiers(inflight.device))
      ctas = std::min(gpu->usual->ctas(), ctas);
  std::span<const copy::Piece> wave(inflight.pieces.data() + inflight.next,
                                    inflight.pieces.size() - inflight.next);
  const bool by_gpu =
      inflight.method == copy::Method::copy_engine || inflight.method == copy::Method::sm_kernel;
  if (by_gpu)
    wave = wave.first(std::min(
        wave.size(), inflight.method == copy::Method::sm_kernel ? kWaveKernel : kWaveCopies));
  const PeerProcess process = channel_.process();
  auto ticket = inflight.copier->start(
      {.method = inflight.method,
       .pieces = wave,
       .pages = inflight.pages,
       .queue = copy_queue_index_,
       .pid = process.pid,
       .pidfd = process.pidfd,
       .proof = &proof_,
       .remote_is_source = inflight.op == Op::read,
       .peer = peer_.incarnation,
       .link = inflight.link,
       .device = inflight.device,
       .ctas = ctas,
       .to_gpu = on_gpu(inflight.op == Op::read ? inflight.target->key.kind
                                                : inflight.remote->key().kind),
       .guarded = touches_private_memory(inflight),
       .sealed = inflight.target->key.kind == MemoryKind::shared &&
                 inflight.remote->key().kind == MemoryKind::shared,
       .after = streams.after,
       .stream = streams.stream,
       .release = streams.wants_event && wave.size() == inflight.pieces.size() ? event : nullptr,
       .actual_method = by_gpu ? &inflight.method : nullptr});
  if (!ticket.ok()) return ticket.status();
  inflight.ticket = *ticket;
  inflight.next += wave.size();
  inflight.blocks_with_copier =
      wave.size() + inflight.pages.to_index.size() * (1 + inflight.pages.more.size());
  inflight.pages = {};
  return {};
}

void LocalEndpoint::stop(LocalInflightBatch& inflight) {
  inflight.canceled = true;
  if (inflight.ticket != 0) inflight.copier->abort(inflight.ticket);
}

void LocalEndpoint::cancel(std::uint64_t cookie) {
  const base::MutexLock lock(transport_.copiers.mutex);
  for (LocalInflightBatch& inflight : inflight_)
    if (!inflight.for_peer &&
        (inflight.parent != nullptr ? inflight.parent->id : inflight.id) == cookie)
      stop(inflight);
}

void LocalEndpoint::advance(LocalInflightBatch& inflight) {
  if (inflight.state == BatchState::opening) open_offer(inflight);
  if (inflight.state == BatchState::bouncing) return add_steps(inflight);
  if (inflight.state == BatchState::starting_phase) start_phase(inflight);
  if (inflight.state == BatchState::requested) poll_completion_flag(inflight);
  if (inflight.state == BatchState::requested && inflight.canceled && !inflight.cancel_sent) {
    flatbuffers::FlatBufferBuilder out;
    out.Finish(schema::CreateCancel(out, inflight.request_id));
    inflight.cancel_sent = send(LocalMessage::cancel, finished(out)).ok();
  }
  while (inflight.state == BatchState::copying) {
    if (inflight.ticket != 0) {
      auto end = inflight.copier->poll(inflight.ticket);
      if (!end) return;
      inflight.ticket = 0;
      inflight.end = *std::move(end);
      transport_.copiers.count(inflight.method, inflight.blocks_with_copier);
    }
    if (inflight.end.ok() &&
        (inflight.next < inflight.pieces.size() || !inflight.pages.to_index.empty())) {
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
    const bool step = inflight->parent != nullptr;
    --(step ? steps_ : inflight->for_peer ? for_peer_ : ours_);
    if (!step && !inflight->for_peer) ++completed;
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
      const PollHint bounce = bounce_poll_hint(inflight, now);
      if (bounce.when == PollHint::When::now) return bounce;
      if (bounce.when == PollHint::When::at &&
          (hint.when == PollHint::When::idle || bounce.at < hint.at))
        hint = {PollHint::When::at, bounce.at, hint.for_peer};
      continue;
    }
    const bool requested =
        inflight.state == BatchState::requested && !(inflight.canceled && !inflight.cancel_sent);
    if (requested && inflight.completion_flag == kNoFlag) continue;  // a message reports the end
    hint.for_peer |= inflight.for_peer;
    if (!requested && (inflight.state != BatchState::copying || inflight.ticket == 0))
      return {.when = PollHint::When::now, .for_peer = hint.for_peer};
    const base::Time due =
        requested ? copy::poll_hint(inflight.due, inflight.polled) : inflight.copier->expected(now);
    if (hint.when == PollHint::When::idle || due < hint.at)
      hint = {PollHint::When::at, due, hint.for_peer};
  }
  return hint;
}

}  // namespace linkspan::transport::local
