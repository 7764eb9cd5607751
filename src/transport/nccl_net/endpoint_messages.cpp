// What the peer says to a NcclNetEndpoint: hostile bytes until they are verified.
#include <algorithm>

#include "base/schema/nccl_net_generated.h"
#include "base/untrusted_input.hpp"
#include "memory/region.hpp"
#include "transport/nccl_net/endpoint.hpp"

namespace linkspan::transport::nccl_net {
namespace {

constexpr std::size_t kMaxNetMessageWords = 512;

Status corrupt_net_message(const char* what) { return {Code::corrupt, Scope::peer, what}; }

/// False: no code of this release's, or none of an end.
bool take_status(std::uint8_t code, const flatbuffers::String& what, Status& status) {
  const auto end = base::end_of_transfer(code);
  if (!end) return false;
  if (*end != Code::ok)
    status =
        Status(*end, Scope::request, "by the peer: " + schema::text_of(what, kMaxNetMessageWords));
  return true;
}

}  // namespace

Status NcclNetEndpoint::on_message(std::uint16_t op, std::span<const std::byte> bytes,
                                   std::span<base::Fd>) {
  if (!failed_.ok()) return {};  // soon it is lost
  switch (static_cast<Message>(op)) {
    case Message::open:
      return on_open(bytes);
    case Message::listening:
      return on_listening(bytes);
    case Message::broken:
      return on_broken(bytes);
    case Message::write:
      return on_write(bytes);
    case Message::clear:
      return on_clear(bytes);
    case Message::read:
      return on_read(bytes);
    case Message::cancel:
      return on_cancel(bytes);
    case Message::ended:
      return on_ended(bytes);
  }
  return {Code::unsupported, Scope::request, "nccl_net has no op " + std::to_string(op)};
}

Status NcclNetEndpoint::on_open(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetOpen>(bytes);
  GpuUuid gpu{};
  if (wire == nullptr || !schema::take(wire->gpu(), gpu))
    return corrupt_net_message("malformed open");
  if (sends_.contains(wire->flow())) return corrupt_net_message("a flow is opened twice");
  if (sends_.size() >= kMaxFlows) return corrupt_net_message("more flows than a peer may open");
  const NcclNetOptions& options = transport_.options();
  const cuda::Device* device = nullptr;
  if (gpu != GpuUuid{} && options.topology != nullptr) device = options.topology->active(gpu);
  if (gpu != GpuUuid{} && device == nullptr)
    return corrupt_net_message("a flow from a GPU of which no region was published");
  // Shared: with the thread.
  auto flow = std::make_shared<SendFlow>(options.plugin, device, transport_.nic(gpu), connect_by(),
                                         transport_.staging());
  if (Status status = transport_.thread().add(flow); !status.ok()) return status;
  sends_.emplace(wire->flow(), Known<SendFlow>{.flow = std::move(flow)});
  return {};
}

Status NcclNetEndpoint::on_listening(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetListening>(bytes);
  Handle handle{};
  if (wire == nullptr || !schema::take(wire->handle(), handle))
    return corrupt_net_message("malformed listening");
  const auto known = sends_.find(wire->flow());
  if (known == sends_.end()) return corrupt_net_message("a flow listens that was not opened");
  known->second.flow->set_handle(handle);
  transport_.thread().wake();
  return {};
}

Status NcclNetEndpoint::on_broken(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetBroken>(bytes);
  Status why;
  if (wire == nullptr || !take_status(wire->code(), *wire->what(), why) || why.ok())
    return corrupt_net_message("malformed broken");
  const auto hear = [&](auto& flows) {
    const auto known = flows.find(wire->flow());
    if (known == flows.end()) return;  // both had said so
    known->second.heard = true;
    known->second.flow->end(why);
  };
  wire->by_receiver() ? hear(sends_) : hear(receives_);
  transport_.thread().wake();
  return {};
}

/// What a peer asks for. Its `end` says why it is refused.
template <class Wire>
Result<NcclNetEndpoint::Slot> NcclNetEndpoint::asked(const Wire& wire, Op op) {
  const Capabilities& limits = transport_.capabilities();
  Token token{};
  if (!schema::take(wire.token(), token))
    return corrupt_net_message("a request with a malformed token");
  if (theirs_.size() >= limits.max_inflight)
    return corrupt_net_message("more requests than may be in flight");
  if (find(theirs_, wire.id()) != nullptr) return corrupt_net_message("two requests of one number");
  if (wire.blocks()->size() == 0 || wire.blocks()->size() > limits.max_batch_blocks)
    return corrupt_net_message("a request of too many blocks, or of none");
  Slot slot;
  slot.id = wire.id();
  slot.op = op;
  slot.use = transport_.use(wire.serial());
  const auto refuse = [&slot](Code code, const char* what) {
    if (slot.end.ok()) slot.end = Status(code, Scope::request, what);
  };
  if (slot.use.memory() == nullptr || !equal_constant_time(slot.use.memory()->key.token, token))
    refuse(Code::unreachable, "the region is not registered here");
  else if (const Permissions may = slot.use.memory()->key.peers;
           !(op == Op::write ? may.write : may.read))
    refuse(Code::permission_denied, "not permitted on this region");
  std::uint64_t left = limits.max_batch_bytes;
  for (const schema::WireSpan* span : *wire.blocks()) {
    if (span->bytes() == 0 || span->bytes() > left)
      return corrupt_net_message("a request of too many bytes, or with an empty block");
    left -= span->bytes();
    if (slot.use.memory() != nullptr &&
        !memory::fits(span->offset(), span->bytes(), slot.use.memory()->key.bytes))
      refuse(Code::invalid_argument, "a block leaves the region");
    slot.spans.push_back({span->offset(), span->bytes()});
  }
  if (!slot.end.ok()) slot.use = {};
  return slot;
}

Status NcclNetEndpoint::on_write(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetWrite>(bytes);
  GpuUuid gpu{};
  if (wire == nullptr || !schema::take(wire->gpu(), gpu))
    return corrupt_net_message("malformed write");
  auto slot = asked(*wire, Op::write);
  if (!slot.ok()) return slot.status();
  if (slot->end.ok()) {
    auto flow = receive_flow(slot->use.memory()->device, gpu);
    slot->end = flow.status();
    if (flow.ok()) {
      slot->order = order_of(*slot);
      slot->flow = (*flow)->second.flow;
      slot->flow->add(slot->order);
      flatbuffers::FlatBufferBuilder out;
      out.Finish(schema::CreateNetClear(out, slot->id, (*flow)->first));
      say(Message::clear, out);
    }
  }
  theirs_.push_back(*std::move(slot));
  transport_.thread().wake();
  return {};
}

Status NcclNetEndpoint::on_clear(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetClear>(bytes);
  if (wire == nullptr) return corrupt_net_message("malformed clear");
  Slot* const slot = find(ours_, wire->id());
  if (slot == nullptr || slot->op != Op::write || slot->order != nullptr)
    return corrupt_net_message("what is clear was not asked for");
  const auto known = sends_.find(wire->flow());
  if (known == sends_.end()) return corrupt_net_message("clear for a flow that was not opened");
  if (known->second.flow->device() != slot->use.memory()->device)
    return corrupt_net_message("clear for a flow of other memory");
  slot->order = order_of(*slot);
  slot->spans.clear();
  slot->order->hollow = slot->canceled;
  known->second.flow->add(slot->order);
  transport_.thread().wake();
  return {};
}

Status NcclNetEndpoint::on_read(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetRead>(bytes);
  if (wire == nullptr) return corrupt_net_message("malformed read");
  const auto known = sends_.find(wire->flow());
  if (known == sends_.end())
    return corrupt_net_message("a read through a flow that was not opened");
  auto slot = asked(*wire, Op::read);
  if (!slot.ok()) return slot.status();
  if (const auto& memory = slot->use.memory();
      memory != nullptr && memory->device != known->second.flow->device())
    return corrupt_net_message("a read through a flow of other memory");
  slot->order = order_of(*slot);  // of one that is refused: of empty messages
  slot->flow = known->second.flow;
  slot->flow->add(slot->order);
  theirs_.push_back(*std::move(slot));
  transport_.thread().wake();
  return {};
}

Status NcclNetEndpoint::on_cancel(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetCancel>(bytes);
  if (wire == nullptr) return corrupt_net_message("malformed cancel");
  // What has ended meanwhile needs no cancel.
  if (const Slot* const slot = find(theirs_, wire->id());
      slot != nullptr && slot->op == Op::read && slot->order != nullptr)
    slot->order->hollow = true;
  return {};
}

Status NcclNetEndpoint::on_ended(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetEnded>(bytes);
  Status end;
  if (wire == nullptr || !take_status(wire->code(), *wire->what(), end))
    return corrupt_net_message("malformed ended");
  Slot* const slot = find(ours_, wire->id());
  if (slot == nullptr || slot->heard)
    return corrupt_net_message("what has ended was not asked for");
  if (slot->order == nullptr && end.ok())
    return corrupt_net_message("a write ended before it was clear");
  slot->heard = true;
  slot->end = end;
  if (end.code() == Code::unreachable) slot->remote->mark_dead();
  return {};
}

NcclNetEndpoint::Slot* NcclNetEndpoint::find(std::list<Slot>& slots, std::uint64_t id) {
  const auto found =
      std::find_if(slots.begin(), slots.end(), [id](const Slot& slot) { return slot.id == id; });
  return found == slots.end() ? nullptr : &*found;
}

}  // namespace linkspan::transport::nccl_net
