// Handles the peer's messages to a NcclNetEndpoint: hostile bytes until they are verified.
#include <algorithm>

#include "base/schema/nccl_net_generated.h"
#include "base/untrusted_input.hpp"
#include "memory/region.hpp"
#include "transport/nccl_net/endpoint.hpp"

namespace linkspan::transport::nccl_net {
namespace {

constexpr std::size_t kMaxNetMessageWords = 512;

Status corrupt_net_message(const char* what) { return {Code::corrupt, Scope::peer, what}; }

/// Returns false if the code is unknown, or not one that ends a transfer.
bool parse_status(std::uint8_t code, const flatbuffers::String& what, Status& status) {
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
  if (!failed_.ok()) return {};  // the peer is dropped soon
  switch (static_cast<MessageType>(op)) {
    case MessageType::open:
      return on_open(bytes);
    case MessageType::listening:
      return on_listening(bytes);
    case MessageType::broken:
      return on_broken(bytes);
    case MessageType::write:
      return on_write(bytes);
    case MessageType::clear:
      return on_clear(bytes);
    case MessageType::read:
      return on_read(bytes);
    case MessageType::cancel:
      return on_cancel(bytes);
    case MessageType::ended:
      return on_ended(bytes);
  }
  return {Code::unsupported, Scope::request, "nccl_net has no op " + std::to_string(op)};
}

Status NcclNetEndpoint::on_open(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetOpen>(bytes);
  GpuUuid gpu{};
  if (wire == nullptr || !schema::take(wire->gpu(), gpu))
    return corrupt_net_message("malformed open");
  return queues_.on_open(wire->flow(), gpu);
}

Status NcclNetEndpoint::on_listening(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetListening>(bytes);
  Handle handle{};
  if (wire == nullptr || !schema::take(wire->handle(), handle))
    return corrupt_net_message("malformed listening");
  return queues_.on_listening(wire->flow(), handle);
}

Status NcclNetEndpoint::on_broken(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetBroken>(bytes);
  Status why;
  if (wire == nullptr || !parse_status(wire->code(), *wire->what(), why) || why.ok())
    return corrupt_net_message("malformed broken");
  queues_.on_broken(wire->flow(), wire->by_receiver(), why);
  return {};
}

/// Checks a request of the peer's. The result's `end` says why it is refused.
template <class Request>
Result<NcclNetEndpoint::NcclNetInflightBatch> NcclNetEndpoint::on_request(const Request& wire,
                                                                          Op op) {
  const Capabilities& limits = transport_.capabilities();
  Token token{};
  if (!schema::take(wire.token(), token))
    return corrupt_net_message("a request with a malformed token");
  if (peer_batches_.size() >= limits.max_inflight)
    return corrupt_net_message("more requests than may be in flight");
  if (find(peer_batches_, wire.id()) != nullptr)
    return corrupt_net_message("two requests of one number");
  if (wire.blocks()->size() == 0 || wire.blocks()->size() > limits.max_batch_blocks)
    return corrupt_net_message("a request of too many blocks, or of none");
  NcclNetInflightBatch inflight;
  inflight.id = wire.id();
  inflight.op = op;
  inflight.use = transport_.use(wire.serial());
  const auto refuse = [&inflight](Code code, const char* what) {
    if (inflight.end.ok()) inflight.end = Status(code, Scope::request, what);
  };
  if (inflight.use.memory() == nullptr ||
      !equal_constant_time(inflight.use.memory()->key.token, token))
    refuse(Code::unreachable, "the region is not registered here");
  else if (const Permissions may = inflight.use.memory()->key.peers;
           !(op == Op::write ? may.write : may.read))
    refuse(Code::permission_denied, "not permitted on this region");
  std::uint64_t left = limits.max_batch_bytes;
  for (const schema::WireSpan* span : *wire.blocks()) {
    if (span->bytes() == 0 || span->bytes() > left)
      return corrupt_net_message("a request of too many bytes, or with an empty block");
    left -= span->bytes();
    if (inflight.use.memory() != nullptr &&
        !memory::fits(span->offset(), span->bytes(), inflight.use.memory()->key.bytes))
      refuse(Code::invalid_argument, "a block leaves the region");
    inflight.spans.push_back({span->offset(), span->bytes()});
  }
  if (!inflight.end.ok()) inflight.use = {};
  return inflight;
}

Status NcclNetEndpoint::on_write(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetWrite>(bytes);
  GpuUuid gpu{};
  if (wire == nullptr || !schema::take(wire->gpu(), gpu))
    return corrupt_net_message("malformed write");
  auto request = on_request(*wire, Op::write);
  if (!request.ok()) return request.status();
  std::list<NcclNetInflightBatch> accepted;  // as posted in post()
  NcclNetInflightBatch& inflight = accepted.emplace_back(*std::move(request));
  if (inflight.end.ok()) {
    const auto found = queues_.receive(inflight.use.memory()->device, gpu);
    inflight.end = found.status();
    if (found.ok()) {
      inflight.work = make_work(inflight);
      inflight.queue = found->queue;
      flatbuffers::FlatBufferBuilder out;
      out.Finish(schema::CreateNetClear(out, inflight.id, found->number));
      begin(inflight, MessageType::clear, out);
    }
  }
  peer_batches_.splice(peer_batches_.end(), accepted);
  outbox_.flush();
  queues_.wake();
  return {};
}

Status NcclNetEndpoint::on_clear(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetClear>(bytes);
  if (wire == nullptr) return corrupt_net_message("malformed clear");
  NcclNetInflightBatch* const inflight = find(own_batches_, wire->id());
  if (inflight == nullptr || inflight->op != Op::write || inflight->work != nullptr)
    return corrupt_net_message("what is clear was not asked for");
  const auto queue = queues_.send(wire->flow());
  if (queue == nullptr) return corrupt_net_message("clear for a flow that was not opened");
  if (queue->device() != inflight->use.memory()->device)
    return corrupt_net_message("clear for a flow of other memory");
  const auto work = make_work(*inflight);
  work->send_empty = inflight->canceled_at.has_value();
  queue->add(work);
  inflight->work = work;
  inflight->spans.clear();
  queues_.wake();
  return {};
}

Status NcclNetEndpoint::on_read(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetRead>(bytes);
  if (wire == nullptr) return corrupt_net_message("malformed read");
  const auto queue = queues_.send(wire->flow());
  if (queue == nullptr) return corrupt_net_message("a read through a flow that was not opened");
  auto request = on_request(*wire, Op::read);
  if (!request.ok()) return request.status();
  std::list<NcclNetInflightBatch> accepted;
  NcclNetInflightBatch& inflight = accepted.emplace_back(*std::move(request));
  if (const auto& memory = inflight.use.memory();
      memory != nullptr && memory->device != queue->device())
    return corrupt_net_message("a read through a flow of other memory");
  inflight.work = make_work(inflight);  // if refused: of empty messages
  inflight.queue = queue;
  inflight.queue->add(inflight.work);
  peer_batches_.splice(peer_batches_.end(), accepted);
  queues_.wake();
  return {};
}

Status NcclNetEndpoint::on_cancel(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetCancel>(bytes);
  if (wire == nullptr) return corrupt_net_message("malformed cancel");
  // A request that has ended needs no cancel.
  if (const NcclNetInflightBatch* const inflight = find(peer_batches_, wire->id());
      inflight != nullptr && inflight->op == Op::read && inflight->work != nullptr)
    inflight->work->send_empty = true;
  return {};
}

Status NcclNetEndpoint::on_ended(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetEnded>(bytes);
  Status end;
  if (wire == nullptr || !parse_status(wire->code(), *wire->what(), end))
    return corrupt_net_message("malformed ended");
  NcclNetInflightBatch* const inflight = find(own_batches_, wire->id());
  if (inflight == nullptr || inflight->ended_by_peer)
    return corrupt_net_message("what has ended was not asked for");
  if (inflight->work == nullptr && end.ok())
    return corrupt_net_message("a write ended before it was clear");
  inflight->ended_by_peer = true;
  inflight->end = end;
  if (end.code() == Code::unreachable) inflight->remote->mark_dead();
  return {};
}

NcclNetEndpoint::NcclNetInflightBatch* NcclNetEndpoint::find(
    std::list<NcclNetInflightBatch>& batches, std::uint64_t id) {
  const auto found = std::ranges::find(batches, id, &NcclNetInflightBatch::id);
  return found == batches.end() ? nullptr : &*found;
}

}  // namespace linkspan::transport::nccl_net
