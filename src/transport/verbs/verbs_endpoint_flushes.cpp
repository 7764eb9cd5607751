// Flushes of a VerbsEndpoint: what network cards wrote to memory of GPUs is made visible.
#include "base/schema/verbs_generated.h"
#include "base/untrusted_input.hpp"
#include "transport/verbs/verbs_endpoint.hpp"

namespace linkspan::transport::verbs {

/// Asks for the flush that a batch needs which has moved. Returns false if it needs none.
bool VerbsEndpoint::flush_later(VerbsBatch& batch) {
  // The peer's memory is its own once the connection has ended.
  if (!batch.needs_flush() || (batch.op == Op::write && life_.disconnected)) return false;
  const std::uint64_t id = flushes_.last_id + 1;
  if (batch.op == Op::read) {
    flushes_.own.request(id);
  } else {
    flatbuffers::FlatBufferBuilder out;
    out.Finish(schema::CreateVerbsFlush(out, id));
    messages_.send(VerbsMessage::flush, out);
  }
  batch.flush_id = flushes_.last_id = id;
  return true;
}

void VerbsEndpoint::on_flush_done(std::uint64_t id, const Status& status) {
  if (id == 0) flushes_.ended = true;
  for (const auto& batch : batches_) {
    if (batch->flush != VerbsBatch::Flush::asked || batch->flush_id != id) continue;
    batch->flush = VerbsBatch::Flush::done;
    if (!status.ok()) batch->fail(status);
  }
}

void VerbsEndpoint::advance_flushes() {
  for (const auto& batch : batches_) {
    if (batch->flush == VerbsBatch::Flush::asked && batch->op == Op::write && life_.disconnected)
      batch->flush = VerbsBatch::Flush::done;
    if (batch->flush == VerbsBatch::Flush::undecided && batch->moved())
      batch->flush = flush_later(*batch) ? VerbsBatch::Flush::asked : VerbsBatch::Flush::done;
  }
  if (incoming_.has_ended() && !flushes_.asked_at_end) {
    if (transport_.gpu_flush().is_needed())
      flushes_.own.request(0);
    else
      flushes_.ended = true;
    flushes_.asked_at_end = true;
  }
  flushes_.own.advance([this](std::uint64_t id, const Status& s) { on_flush_done(id, s); });
  flushes_.of_peer.advance([this](std::uint64_t id, const Status& s) { answer_flush(id, s); });
}

Status VerbsEndpoint::on_flush(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::VerbsFlush>(bytes);
  if (wire == nullptr) return {Code::corrupt, Scope::peer, "malformed flush"};
  if (flushes_.of_peer.size() >= transport_.capabilities().max_inflight)
    return {Code::corrupt, Scope::peer, "more flushes than there may be batches"};
  flushes_.of_peer.request(wire->id());
  advance_flushes();
  return {};
}

void VerbsEndpoint::answer_flush(std::uint64_t id, const Status& status) {
  flatbuffers::FlatBufferBuilder out;
  const auto what = out.CreateString(status.what().substr(0, kMaxReason));
  out.Finish(schema::CreateVerbsFlushed(out, id, static_cast<std::uint8_t>(status.code()), what));
  messages_.send(VerbsMessage::flushed, out);
}

Status VerbsEndpoint::on_flushed(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::VerbsFlushed>(bytes);
  const auto end = wire == nullptr ? std::nullopt : base::final_code(wire->code());
  if (!end || wire->id() == 0) return {Code::corrupt, Scope::peer, "malformed flushed"};
  Status status;
  if (*end != Code::ok)
    status =
        Status(*end, Scope::peer, "by the peer: " + schema::text_of(*wire->what(), kMaxReason));
  on_flush_done(wire->id(), status);
  return {};
}

}  // namespace linkspan::transport::verbs
