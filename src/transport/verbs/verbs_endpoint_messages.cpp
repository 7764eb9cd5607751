// Handles the peer's messages to a VerbsEndpoint: hostile bytes until they are verified.
#include "base/schema/verbs_generated.h"
#include "base/untrusted_input.hpp"
#include "transport/verbs/verbs_endpoint.hpp"

namespace linkspan::transport::verbs {

Status VerbsEndpoint::on_message(std::uint16_t op, std::span<const std::byte> bytes,
                                 std::span<base::Fd>) {
  if (!life_.failed.ok() || life_.disconnected) return {};
  life_.met = true;
  if (messages_.has_too_many_answers())
    return {Code::corrupt, Scope::peer,
            "more than " + std::to_string(MessageQueue::kMaxAnswers) +
                " answers about RDMA are not read"};
  switch (static_cast<VerbsMessage>(op)) {
    case VerbsMessage::open:
      return incoming_.on_open(bytes);
    case VerbsMessage::opened:
      return on_opened(bytes);
    case VerbsMessage::access:
      return served_.on_access(bytes);
    case VerbsMessage::granted:
      return on_granted(bytes);
    case VerbsMessage::revoke:
      return on_revoke(bytes);
    case VerbsMessage::returned:
      return served_.on_returned(bytes);
    case VerbsMessage::flush:
      return on_flush(bytes);
    case VerbsMessage::flushed:
      return on_flushed(bytes);
  }
  return {Code::unsupported, Scope::request, "verbs has no op " + std::to_string(op)};
}

Status VerbsEndpoint::on_opened(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::VerbsOpened>(bytes);
  const auto end = wire == nullptr ? std::nullopt : base::final_code(wire->code());
  if (!end) return {Code::corrupt, Scope::peer, "malformed opened"};
  LinkAnswer answer{
      .epoch = wire->epoch(),
      .route = {.queue_pair = wire->queue_pair(), .lid = wire->lid(), .reads = wire->reads()}};
  if (!take_gid(wire->gid(), answer.route.gid))
    return {Code::corrupt, Scope::peer, "opened with a malformed GID"};
  if (*end != Code::ok)
    answer.status =
        Status(*end, Scope::peer, "by the peer: " + schema::text_of(*wire->what(), kMaxReason));
  for (const auto& link : links_)
    if (link->is_from(wire->from_rail())) return link->on_answer(answer, now());
  return {Code::corrupt, Scope::peer, "opened by an unknown rail"};
}

Status VerbsEndpoint::on_granted(std::span<const std::byte> bytes) {
  RequestedAccess::Refusal refused;
  if (Status status = requested_.on_granted(bytes, refused); !status.ok()) return status;
  if (refused.why.ok()) return {};
  for (const auto& batch : batches_) {
    if (batch->memory.access == nullptr || batch->memory.remote->key().id.serial != refused.serial)
      continue;
    batch->fail(refused.why);
    if (refused.why.code() == Code::unreachable) batch->memory.remote->mark_dead();
  }
  return {};
}

Status VerbsEndpoint::on_revoke(std::span<const std::byte> bytes) {
  const RemoteAccess* ends = nullptr;
  if (Status status = requested_.on_revoke(bytes, ends); !status.ok()) return status;
  if (ends == nullptr) return {};
  for (const auto& batch : batches_) {
    if (batch->memory.access != ends) continue;
    batch->fail({Code::unreachable, Scope::request, "the peer has deregistered the region"});
    batch->memory.remote->mark_dead();
  }
  return {};
}

}  // namespace linkspan::transport::verbs
