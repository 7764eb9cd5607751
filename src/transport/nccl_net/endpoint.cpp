#include "transport/nccl_net/endpoint.hpp"

#include <algorithm>
#include <utility>

#include "base/schema/nccl_net_generated.h"

namespace linkspan::transport::nccl_net {
namespace {

using namespace std::chrono_literals;
using schema::vector_of;

constexpr const char* kNetPath = "nccl_net";
constexpr Duration kConnect = 10s;       // of a flow, from its first use
constexpr Duration kNetLook = 20us;      // at orders that the thread works on
constexpr Duration kNetLookAgain = 1ms;  // at what waits for the peer
constexpr Duration kCheckEach = 100ms;
constexpr Duration kStoodStill = 5s;  // this process, if nothing has looked for so long

}  // namespace

NcclNetEndpoint::NcclNetEndpoint(NcclNetTransport& transport, const Address& peer, Channel& channel,
                                 base::Deadline)
    : transport_(transport),
      peer_(peer),
      channel_(channel),
      most_(std::min(transport.most(), peer.most)) {}

NcclNetEndpoint::~NcclNetEndpoint() {
  const Status over(Code::canceled, Scope::peer, "the endpoint has ended");
  for (auto& [id, known] : receives_) known.flow->end(over);
  for (auto& [id, known] : sends_) known.flow->end(over);
  transport_.thread().wake();
}

Status NcclNetEndpoint::ready() const {
  if (closed_) return {Code::canceled, Scope::peer, "the endpoint is closed"};
  if (gone_)
    return {Code::disconnected, Scope::peer,
            "peer " + std::string(channel_.peer_name()) + " is gone"};
  return failed_;
}

/// Ends all flows with the peer, which fences what they still bring, and gives the peer up.
void NcclNetEndpoint::fail(const Status& why) {
  if (!failed_.ok()) return;
  failed_ = why;
  for (auto& [id, known] : receives_) known.flow->end(why);
  for (auto& [id, known] : sends_) known.flow->end(why);
  transport_.thread().wake();
  channel_.fail_peer(why);
}

/// Else a batch, or a region, would stay as long as the peer likes: it sends or takes no message
/// and says other things.
void NcclNetEndpoint::check_bounds() {
  const base::Time now = this->now();
  if (now < next_check_ || gone_ || !failed_.ok()) return;
  const bool fresh = now - next_check_ > kStoodStill;
  next_check_ = now + kCheckEach;
  for (Slot& slot : ours_) {
    if (!slot.canceled || is_over(slot)) continue;
    if (fresh) slot.canceled_at = std::max(slot.canceled_at, now - kCancelEnds + kStoodStill);
    if (now - slot.canceled_at > kCancelEnds)
      return fail(Status(Code::disconnected, Scope::peer,
                         "peer " + std::string(channel_.peer_name()) +
                             " has not ended a canceled transfer for 10 s: connect to it again"));
  }
  for (Slot& slot : theirs_) {
    if (slot.flow == nullptr || has_ended(slot) || !slot.end.ok()) continue;
    if (fresh) slot.moved_at = {};
    slot.end = why_over(slot, now);
    if (slot.end.ok()) continue;
    slot.flow->end(Status(Code::disconnected, Scope::peer,
                          "another transfer by this connection has not gone on and was ended"));
    transport_.thread().wake();
  }
}

/// OK: it may go on.
Status NcclNetEndpoint::why_over(Slot& slot, base::Time now) {
  const std::uint64_t moved = slot.flow->moved();
  if (slot.moved_at == base::Time{} || moved != slot.seen) slot.moved_at = now;
  slot.seen = moved;
  const Duration still = now - slot.moved_at;
  if (slot.op == Op::write && still > kStill)
    return {Code::timed_out, Scope::request,
            "no message of it has come for 60 s: the region is not kept for it any longer"};
  const auto& memory = slot.use.memory();
  if (memory == nullptr || !memory->retracted) return {};
  if (!slot.retracted_since) slot.retracted_since = now;
  if (still <= (memory->revoke_immediately ? kStillAtOnce : kStillRetracted) &&
      now - *slot.retracted_since <= kRetracted)
    return {};
  return {Code::unreachable, Scope::request, "its owner has deregistered the region"};
}

std::vector<Served> NcclNetEndpoint::served() const {
  std::vector<Served> all;
  for (const Slot& slot : theirs_)
    if (slot.use.memory() != nullptr && !has_ended(slot))
      all.push_back({.serial = slot.use.memory()->key.id.serial,
                     .op = slot.op,
                     .bytes = slot.order->moved.load(std::memory_order_relaxed),
                     .still = slot.moved_at == base::Time{} ? Duration{} : now() - slot.moved_at});
  return all;
}

Status NcclNetEndpoint::post(const Batch& batch) {
  if (Status status = ready(); !status.ok()) return status;
  if (Status status = transport_.takes(batch.local->facts()); !status.ok()) return status;
  auto asked = transport_.check(batch, peer_.incarnation);
  if (!asked.ok()) return asked.status();
  if (ours_.size() >= transport_.capabilities().max_inflight) return Status::no_resource();
  Slot slot;
  slot.use = std::move(asked->use);
  slot.id = ++last_id_;
  slot.cookie = batch.cookie;
  slot.op = batch.op;
  slot.remote = asked->remote;
  if (batch.path_taken != nullptr) *batch.path_taken = {.path = kNetPath, .by_peer = false};
  const CheckedShape& checked = asked->checked;
  if (checked.size.blocks == 0) {
    slot.heard = true;  // there is nothing to ask
    ours_.push_back(std::move(slot));
    return {};
  }
  std::vector<schema::WireSpan> spans;
  spans.reserve(checked.blocks().size());
  slot.spans.reserve(checked.blocks().size());
  for (const Block& b : checked.blocks()) {
    spans.emplace_back(b.remote_offset, b.bytes);
    slot.spans.push_back({b.local_offset, b.bytes});
  }
  transport_.count(spans.size());
  const WireRegion& local = *slot.use.memory();
  const WireKey& remote = slot.remote->key();
  std::uint32_t flow = 0;
  if (slot.op == Op::read) {
    auto found = receive_flow(local.device, remote.gpu);
    if (!found.ok()) return found.status();
    flow = (*found)->first;
    slot.order = order_of(slot);
    slot.spans.clear();
    (*found)->second.flow->add(slot.order);
    transport_.thread().wake();
  }
  flatbuffers::FlatBufferBuilder out;
  const auto token = vector_of(out, remote.token);
  const auto gpu = vector_of(out, local.key.gpu);
  const auto list = out.CreateVectorOfStructs(spans);
  const std::uint64_t serial = remote.id.serial;
  if (slot.op == Op::write)
    out.Finish(schema::CreateNetWrite(out, slot.id, serial, token, gpu, list));
  else
    out.Finish(schema::CreateNetRead(out, slot.id, serial, token, flow, list));
  say(slot.op == Op::write ? Message::write : Message::read, out);
  ours_.push_back(std::move(slot));
  return {};
}

/// The messages of its spans.
std::shared_ptr<Order> NcclNetEndpoint::order_of(const Slot& slot) const {
  const std::shared_ptr<WireRegion> memory = slot.use.memory();
  std::vector<Order::Piece> pieces;
  for (const Span& span : slot.spans)
    for (std::uint64_t done = 0; done < span.bytes; done += most_)
      pieces.push_back({.address = (memory ? memory->address : 0) + span.offset + done,
                        .bytes = std::min(most_, span.bytes - done)});
  // Shared: with the flow.
  return std::make_shared<Order>(memory, std::move(pieces));
}

base::Deadline NcclNetEndpoint::connect_by() {
  return base::Deadline::after(base::Clock::steady(), kConnect);
}

Result<NcclNetEndpoint::Receives::iterator> NcclNetEndpoint::receive_flow(const cuda::Device* ours,
                                                                          const GpuUuid& theirs) {
  for (auto known = receives_.begin(); known != receives_.end(); ++known)
    if (known->second.flow->device() == ours && known->second.theirs == theirs &&
        !known->second.heard && !known->second.flow->broken())
      return known;
  if (receives_.size() >= kMaxFlows)
    return Status(
        Code::disconnected, Scope::peer,
        std::to_string(kMaxFlows) + " flows from one peer, broken ones too: connect to it again");
  const NcclNetOptions& options = transport_.options();
  // Shared: with the thread.
  auto flow = std::make_shared<ReceiveFlow>(
      options.plugin, ours, transport_.nic(ours != nullptr ? ours->info().uuid : GpuUuid{}),
      connect_by(), transport_.staging(),
      ReceiveFlow::Unpacking{options.topology, options.unpack, options.copy_ctas});
  if (Status status = transport_.thread().add(flow); !status.ok()) return status;
  const std::uint32_t number = ++last_flow_;
  flatbuffers::FlatBufferBuilder out;
  const auto gpu = vector_of(out, theirs);
  out.Finish(schema::CreateNetOpen(out, number, gpu));
  say(Message::open, out);
  return receives_.emplace(number, Known<ReceiveFlow>{.flow = std::move(flow), .theirs = theirs})
      .first;
}

void NcclNetEndpoint::cancel(std::uint64_t cookie) {
  for (Slot& slot : ours_) {
    if (slot.cookie != cookie || std::exchange(slot.canceled, true)) continue;
    slot.canceled_at = now();
    if (slot.op == Op::write) {
      if (slot.order != nullptr) slot.order->hollow = true;  // else when it is clear
      continue;
    }
    flatbuffers::FlatBufferBuilder out;
    out.Finish(schema::CreateNetCancel(out, slot.id));
    say(Message::cancel, out);
  }
}

std::size_t NcclNetEndpoint::progress(CompletionSink& sink) {
  flush();
  check_bounds();
  // Who takes nothing is told nothing more, so that what waits for it is bounded.
  if (outbox_.empty()) look_at_flows();
  for (auto slot = theirs_.begin(); slot != theirs_.end() && outbox_.empty();) {
    if (!has_ended(*slot)) {
      ++slot;
      continue;
    }
    report_end(*slot);
    slot = theirs_.erase(slot);
  }
  std::size_t completed = 0;
  for (auto slot = ours_.begin(); slot != ours_.end();) {
    if (!is_over(*slot)) {
      ++slot;
      continue;
    }
    Completion completion{slot->cookie, end_of(*slot)};
    if (!completion.status.ok()) look_at_flows();
    slot = ours_.erase(slot);  // its use too, before its owner hears that it is quiet
    sink.complete(std::move(completion));
    ++completed;
  }
  return completed;
}

/// Of what was ordered.
bool NcclNetEndpoint::has_ended(const Slot& slot) {
  return slot.order == nullptr || slot.order->ended.load(std::memory_order_acquire);
}

bool NcclNetEndpoint::is_over(const Slot& slot) const {
  return has_ended(slot) && (slot.heard || gone_ || !failed_.ok());
}

Status NcclNetEndpoint::end_of(const Slot& slot) const {
  if (gone_ && !slot.heard)
    return {Code::disconnected, Scope::peer,
            "peer " + std::string(channel_.peer_name()) + " is gone"};
  if (!failed_.ok() && !slot.heard) return failed_;
  Status here = slot.order != nullptr ? slot.order->status : Status();
  if (slot.canceled && (here.code() == Code::canceled || slot.end.code() == Code::canceled))
    return {Code::canceled, Scope::request, "canceled"};
  // Of two the one that is a cause: who got no more of it, or lost the connection, did so because
  // of the other.
  const bool follows =
      here.ok() || here.code() == Code::canceled || here.code() == Code::disconnected;
  return follows && !slot.end.ok() ? slot.end : here;
}

void NcclNetEndpoint::report_end(const Slot& slot) {
  Status end = slot.end;
  if (end.ok() && slot.order != nullptr) end = slot.order->status;
  if (!end.ok()) look_at_flows();
  flatbuffers::FlatBufferBuilder out;
  const auto what = out.CreateString(end.what().substr(0, 512));
  out.Finish(schema::CreateNetEnded(out, slot.id, static_cast<std::uint8_t>(end.code()), what));
  say(Message::ended, out);
}

/// What the thread has made of them, for the peer; and those of which both know that they are
/// broken go. Before the end of what broke with a flow is told, here or there: the next transfer
/// is to take another.
void NcclNetEndpoint::look_at_flows() {
  const auto tell = [this](std::uint32_t number, auto& known, bool by_receiver) {
    const auto broken = known.flow->broken();
    if (!broken || std::exchange(known.told, true)) return;
    flatbuffers::FlatBufferBuilder out;
    const auto what = out.CreateString(broken->what().substr(0, 512));
    out.Finish(schema::CreateNetBroken(out, number, by_receiver,
                                       static_cast<std::uint8_t>(broken->code()), what));
    say(Message::broken, out);
  };
  const auto is_over = [](const auto& known) { return known.second.told && known.second.heard; };
  for (auto& [number, known] : receives_) {
    tell(number, known, true);
    const auto handle = known.announced || known.told ? std::nullopt : known.flow->handle();
    if (!handle) continue;
    known.announced = true;
    flatbuffers::FlatBufferBuilder out;
    const auto bytes = vector_of(out, *handle);
    out.Finish(schema::CreateNetListening(out, number, bytes));
    say(Message::listening, out);
  }
  for (auto& [number, known] : sends_) tell(number, known, false);
  std::erase_if(receives_, is_over);
  std::erase_if(sends_, is_over);
}

void NcclNetEndpoint::say(Message message, const flatbuffers::FlatBufferBuilder& out) {
  if (gone_) return;
  outbox_.push_back({message, finished(out)});
  flush();
}

void NcclNetEndpoint::flush() {
  while (!outbox_.empty()) {
    const Saying& next = outbox_.front();
    const Status status = channel_.send(static_cast<std::uint16_t>(next.message), next.bytes, {});
    if (status.code() == Code::no_resource) return;
    outbox_.pop_front();  // or the peer is lost, and gone() comes
  }
}

PollHint NcclNetEndpoint::poll_hint() const {
  const bool for_peer = !theirs_.empty(), told = outbox_.empty();
  bool works = false, canceled = false;  // the thread; and the peer is to say that it has ended
  for (const Slot& slot : ours_) {
    if (is_over(slot)) return {.when = PollHint::When::now, .for_peer = for_peer};
    works |= !has_ended(slot);
    canceled |= slot.canceled;
  }
  for (const Slot& slot : theirs_) {
    if (told && has_ended(slot)) return {.when = PollHint::When::now, .for_peer = for_peer};
    works |= !has_ended(slot);
  }
  const base::Time now = base::Clock::steady().now();
  if (works) return {.when = PollHint::When::at, .at = now + kNetLook, .for_peer = for_peer};
  // A flow that is to listen, or to be told that it is broken.
  const auto unsaid = [](const auto& entry) {
    const auto& known = entry.second;
    return !known.told && (known.heard || known.flow->broken());
  };
  const auto listens = [](const auto& entry) {
    return !entry.second.told && !entry.second.announced;
  };
  if (!told || std::any_of(receives_.begin(), receives_.end(), listens) ||
      std::any_of(receives_.begin(), receives_.end(), unsaid) ||
      std::any_of(sends_.begin(), sends_.end(), unsaid))
    return {.when = PollHint::When::at, .at = now + kNetLookAgain, .for_peer = for_peer};
  if (canceled) return {.when = PollHint::When::at, .at = now + kCheckEach, .for_peer = for_peer};
  return {};
}

Explanation NcclNetEndpoint::explain(Op, const memory::Region& local, const Mapping&,
                                     BatchSummary) const {
  if (const Status status = transport_.takes(local.facts()); !status.ok())
    return {.path = {}, .executor = {}, .reason = status.what(), .expected_gbps = 0, .refused = {}};
  const Plugin& plugin = *transport_.options().plugin;
  const GpuUuid gpu = local.facts().kind == MemoryKind::device ? local.facts().gpu : GpuUuid{};
  return {.path = kNetPath,
          .executor = "both",
          .reason = "network plugin " + name_of(plugin) + ", device " +
                    transport_.device(gpu).name + ", messages of at most " + std::to_string(most_) +
                    " bytes" +
                    (transport_.stages(local.facts())
                         ? "; staged in pinned memory: the device takes host memory only"
                         : ""),
          .expected_gbps = 0,
          .refused = {}};
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
  for (const Slot& slot : ours_) cancel(slot.cookie);
}

bool NcclNetEndpoint::drained() const {
  return gone_ && std::ranges::all_of(theirs_, has_ended) && std::ranges::all_of(ours_, has_ended);
}

void NcclNetEndpoint::peer_terminated() {
  gone_ = true;
  outbox_.clear();
  const Status why(Code::disconnected, Scope::peer,
                   "peer " + std::string(channel_.peer_name()) + " is gone");
  for (auto& [id, known] : receives_) {
    known.flow->end(why);
    known.heard = known.announced = true;
  }
  for (auto& [id, known] : sends_) {
    known.flow->end(why);
    known.heard = true;
  }
  transport_.thread().wake();
}

}  // namespace linkspan::transport::nccl_net
