#include "transport/nccl_net/endpoint.hpp"

#include <algorithm>
#include <utility>

#include "base/schema/nccl_net_generated.h"

namespace linkspan::transport::nccl_net {
namespace {

using namespace std::chrono_literals;
using schema::vector_of;

constexpr const char* kNetPath = "nccl_net";
constexpr Duration kWorkPoll = 20us;         // while the thread executes requests
constexpr Duration kPeerPollInterval = 1ms;  // while the peer has to act
constexpr Duration kBoundsCheck = 100ms;
constexpr Duration kSuspended = 5s;  // without a check for so long, this process was suspended

}  // namespace

Status NcclNetEndpoint::peer_is_gone() const {
  return {Code::disconnected, Scope::peer,
          "peer " + std::string(channel_.peer_name()) + " is gone"};
}

Status NcclNetEndpoint::ready() const {
  if (closed_) return {Code::canceled, Scope::peer, "the endpoint is closed"};
  return disconnected_ ? peer_is_gone() : failed_;
}

/// Breaks all queues with the peer and gives the peer up.
void NcclNetEndpoint::fail(const Status& why) {
  if (!failed_.ok()) return;
  failed_ = why;
  queues_.end(why);
  channel_.fail_peer(why);
}

/// Bounds how long a batch or region stays: a peer may send no message of a transfer and yet be
/// alive.
void NcclNetEndpoint::check_bounds() {
  const base::Time now = this->now();
  if (now < next_check_ || disconnected_ || !failed_.ok()) return;
  const bool fresh = now - next_check_ > kSuspended;
  next_check_ = now + kBoundsCheck;
  for (NcclNetInflightBatch& inflight : own_batches_) {
    if (!inflight.canceled_at || is_over(inflight)) continue;
    if (fresh)
      inflight.canceled_at = std::max(*inflight.canceled_at, now - kCancelEnds + kSuspended);
    if (now - *inflight.canceled_at > kCancelEnds)
      return fail(Status(Code::disconnected, Scope::peer,
                         "peer " + std::string(channel_.peer_name()) +
                             " has not ended a canceled transfer for 10 s: connect to it again"));
  }
  for (NcclNetInflightBatch& inflight : peer_batches_) {
    if (inflight.queue == nullptr || has_ended(inflight) || !inflight.end.ok()) continue;
    if (fresh) inflight.stall.moved_at = {};
    inflight.end = stall_status(inflight, now);
    if (inflight.end.ok()) continue;
    inflight.queue->end(
        Status(Code::disconnected, Scope::peer,
               "another transfer by this connection has not gone on and was ended"));
    queues_.wake();
  }
}

void NcclNetEndpoint::StallTimer::update(std::uint64_t moved, base::Time now) {
  if (moved_at == base::Time{} || moved != seen) moved_at = now;
  seen = moved;
}

/// Returns OK while the transfer may go on.
Status NcclNetEndpoint::stall_status(NcclNetInflightBatch& inflight, base::Time now) {
  StallTimer& stall = inflight.stall;
  stall.update(inflight.queue->moved(), now);
  const Duration still = stall.still(now);
  if (inflight.op == Op::write && still > kMaxStall)
    return {Code::timed_out, Scope::request,
            "no message of it has come for 60 s: the region is not kept for it any longer"};
  const auto& memory = inflight.use.memory();
  if (memory == nullptr || !memory->retracted) return {};
  if (!stall.retracted_since) stall.retracted_since = now;
  if (still <= (memory->revoke_immediately ? kMaxStallAtOnce : kMaxStallRetracted) &&
      now - *stall.retracted_since <= kMaxRetracted)
    return {};
  return {Code::unreachable, Scope::request, "its owner has deregistered the region"};
}

std::vector<Served> NcclNetEndpoint::served() const {
  std::vector<Served> all;
  for (const NcclNetInflightBatch& inflight : peer_batches_)
    if (inflight.use.memory() != nullptr && !has_ended(inflight))
      all.push_back({.serial = inflight.use.memory()->key.id.serial,
                     .op = inflight.op,
                     .bytes = inflight.work->moved.load(std::memory_order_relaxed),
                     .still = inflight.stall.still(now())});
  return all;
}

Result<Posted> NcclNetEndpoint::post(const Batch& batch) {
  if (Status status = ready(); !status.ok()) return status;
  if (Status status = transport_.check_memory(batch.local->facts()); !status.ok())
    return Status(Code::unreachable, Scope::transport, status.what());
  auto resolved = transport_.check(batch, peer_.incarnation);
  if (!resolved.ok()) return resolved.status();
  if (own_batches_.size() >= transport_.capabilities().max_inflight) return Status::no_resource();
  // In its own list until the peer will hear of it: after that nothing may throw.
  std::list<NcclNetInflightBatch> posted(1);
  NcclNetInflightBatch& inflight = posted.front();
  inflight.use = std::move(resolved->use);
  inflight.id = ++last_id_;
  inflight.cookie = batch.cookie;
  inflight.op = batch.op;
  inflight.remote = resolved->remote;
  Posted begun{.path = {.path = kNetPath, .by_peer = false}};
  const CheckedShape& checked = resolved->checked;
  if (checked.size.blocks == 0) {
    inflight.ended_by_peer = true;  // nothing to request
    own_batches_.splice(own_batches_.end(), posted);
    return begun;
  }
  std::vector<schema::WireSpan> spans;
  spans.reserve(checked.blocks().size());
  inflight.spans.reserve(checked.blocks().size());
  for (const Block& b : checked.blocks()) {
    spans.emplace_back(b.remote_offset, b.bytes);
    inflight.spans.push_back({b.local_offset, b.bytes});
  }
  transport_.count(spans.size());
  const WireRegion& local = *inflight.use.memory();
  const WireKey& remote = inflight.remote->key();
  std::uint32_t number = 0;
  if (inflight.op == Op::read) {
    const auto found = queues_.receive(local.device, remote.gpu);
    if (!found.ok()) return found.status();
    number = found->number;
    inflight.queue = found->queue;
    inflight.work = make_work(inflight);
    inflight.spans.clear();
  }
  flatbuffers::FlatBufferBuilder out;
  const auto token = vector_of(out, remote.token);
  const auto gpu = vector_of(out, local.key.gpu);
  const auto list = out.CreateVectorOfStructs(spans);
  const std::uint64_t serial = remote.id.serial;
  if (inflight.op == Op::write)
    out.Finish(schema::CreateNetWrite(out, inflight.id, serial, token, gpu, list));
  else
    out.Finish(schema::CreateNetRead(out, inflight.id, serial, token, number, list));
  begin(inflight, inflight.op == Op::write ? MessageType::write : MessageType::read, out);
  own_batches_.splice(own_batches_.end(), posted);
  outbox_.flush();
  return begun;
}

/// Adds the receives of a batch, if it has any, and queues the message that asks the peer for its
/// part: both or, if this throws, neither. The caller flushes.
void NcclNetEndpoint::begin(const NcclNetInflightBatch& inflight, MessageType type,
                            const flatbuffers::FlatBufferBuilder& message) {
  outbox_.push(type, message);
  if (inflight.work == nullptr) return;
  try {
    inflight.queue->add(inflight.work);
  } catch (...) {
    outbox_.pop_back();
    throw;
  }
  queues_.wake();
}

/// Makes the messages of its spans.
std::shared_ptr<WorkRequest> NcclNetEndpoint::make_work(
    const NcclNetInflightBatch& inflight) const {
  const std::shared_ptr<WireRegion> memory = inflight.use.memory();
  std::vector<WorkRequest::MessageBuffer> messages;
  for (const RegionSpan& span : inflight.spans)
    for (std::uint64_t done = 0; done < span.bytes; done += max_message())
      messages.push_back({.address = (memory ? memory->address : 0) + span.offset + done,
                          .bytes = std::min(max_message(), span.bytes - done)});
  // Shared with the queue.
  return std::make_shared<WorkRequest>(memory, std::move(messages));
}

void NcclNetEndpoint::cancel(std::uint64_t cookie) {
  for (NcclNetInflightBatch& inflight : own_batches_) {
    if (inflight.cookie != cookie || inflight.canceled_at) continue;
    inflight.canceled_at = now();
    if (inflight.op == Op::write) {
      if (inflight.work != nullptr) inflight.work->send_empty = true;  // else set by on_clear()
      continue;
    }
    flatbuffers::FlatBufferBuilder out;
    out.Finish(schema::CreateNetCancel(out, inflight.id));
    outbox_.send(MessageType::cancel, out);
  }
}

std::size_t NcclNetEndpoint::progress(CompletionSink& sink) {
  outbox_.flush();
  check_bounds();
  // Produce no more messages while the peer does not drain the outbox; this bounds the backlog.
  if (outbox_.empty()) queues_.report();
  std::erase_if(peer_batches_, [this](const NcclNetInflightBatch& inflight) {
    if (!outbox_.empty() || !has_ended(inflight)) return false;
    report_end(inflight);
    return true;
  });
  std::size_t completed = 0;
  for (auto inflight = own_batches_.begin(); inflight != own_batches_.end();) {
    if (!is_over(*inflight)) {
      ++inflight;
      continue;
    }
    Completion completion{inflight->cookie, end_of(*inflight)};
    if (!completion.status.ok()) queues_.report();
    inflight =
        own_batches_.erase(inflight);  // releases its use before the owner learns that it is quiet
    sink.complete(std::move(completion));
    ++completed;
  }
  return completed;
}

/// Returns true if its WorkRequest, if any, has ended.
bool NcclNetEndpoint::has_ended(const NcclNetInflightBatch& inflight) {
  return inflight.work == nullptr || inflight.work->ended.load(std::memory_order_acquire);
}

bool NcclNetEndpoint::is_over(const NcclNetInflightBatch& inflight) const {
  return has_ended(inflight) && (inflight.ended_by_peer || disconnected_ || !failed_.ok());
}

Status NcclNetEndpoint::end_of(const NcclNetInflightBatch& inflight) const {
  if (disconnected_ && !inflight.ended_by_peer) return peer_is_gone();
  if (!failed_.ok() && !inflight.ended_by_peer) return failed_;
  Status here = inflight.work != nullptr ? inflight.work->status : Status();
  if (inflight.canceled_at &&
      (here.code() == Code::canceled || inflight.end.code() == Code::canceled))
    return {Code::canceled, Scope::request, "canceled"};
  // Prefers the cause: canceled and disconnected may only follow from the other side's error.
  const bool follows =
      here.ok() || here.code() == Code::canceled || here.code() == Code::disconnected;
  return follows && !inflight.end.ok() ? inflight.end : here;
}

void NcclNetEndpoint::report_end(const NcclNetInflightBatch& inflight) {
  Status end = inflight.end;
  if (end.ok() && inflight.work != nullptr) end = inflight.work->status;
  if (!end.ok()) queues_.report();
  flatbuffers::FlatBufferBuilder out;
  const auto what = out.CreateString(end.what().substr(0, 512));
  out.Finish(schema::CreateNetEnded(out, inflight.id, static_cast<std::uint8_t>(end.code()), what));
  outbox_.send(MessageType::ended, out);
}

PollHint NcclNetEndpoint::poll_hint() const {
  const bool sent = outbox_.empty();
  PollHint hint{.for_peer = !peer_batches_.empty()};
  const auto now = [&hint] {
    hint.when = PollHint::When::now;
    return hint;
  };
  const auto after = [&hint](Duration wait) {
    hint.when = PollHint::When::at;
    hint.at = base::Clock::steady().now() + wait;
    return hint;
  };
  bool works = false, canceled = false;  // the thread works; the peer has to report an end
  for (const NcclNetInflightBatch& inflight : own_batches_) {
    if (is_over(inflight)) return now();
    works |= !has_ended(inflight);
    canceled |= inflight.canceled_at.has_value();
  }
  for (const NcclNetInflightBatch& inflight : peer_batches_) {
    if (sent && has_ended(inflight)) return now();
    works |= !has_ended(inflight);
  }
  if (works) return after(kWorkPoll);
  if (!sent || queues_.has_reports()) return after(kPeerPollInterval);
  if (canceled) return after(kBoundsCheck);
  return {};
}

Explanation NcclNetEndpoint::explain(Op, const memory::Region& local, const Mapping& remote,
                                     BatchSummary) const {
  if (const Status status = transport_.check_memory(local.facts()); !status.ok())
    return {.path = {}, .executor = {}, .reason = status.what(), .expected_gbps = 0, .refused = {}};
  const Plugin& plugin = *transport_.options().plugin;
  const GpuUuid gpu = local.facts().kind == MemoryKind::device ? local.facts().gpu : GpuUuid{};
  return {.path = kNetPath,
          .executor = "both",
          .reason = "network plugin " + name_of(plugin) + ", device " +
                    transport_.device(gpu).name + ", messages of at most " +
                    std::to_string(max_message()) + " bytes" +
                    (transport_.stages(local.facts())
                         ? "; staged in pinned memory: the device takes host memory only"
                         : ""),
          .expected_gbps = 0,
          .refused = transport_.refused(local, remote)};
}

std::string NcclNetEndpoint::describe_paths() const {
  return "network plugin " + name_of(*transport_.options().plugin) + " here, " + peer_.plugin +
         " there" +
         (transport_.capabilities().local_kinds.contains(MemoryKind::device)
              ? ""
              : "; host memory only");
}

void NcclNetEndpoint::close() {
  closed_ = true;
  for (const NcclNetInflightBatch& inflight : own_batches_) cancel(inflight.cookie);
}

bool NcclNetEndpoint::drained() const {
  return disconnected_ && std::ranges::all_of(peer_batches_, has_ended) &&
         std::ranges::all_of(own_batches_, has_ended);
}

void NcclNetEndpoint::peer_terminated() {
  disconnected_ = true;
  outbox_.close();
  queues_.peer_terminated(peer_is_gone());
}

}  // namespace linkspan::transport::nccl_net
