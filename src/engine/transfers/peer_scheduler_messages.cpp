// PeerScheduler: what its Rendezvous calls. Sends frames, starts copies, ends messages.
#include <algorithm>
#include <utility>

#include "base/no_memory.hpp"
#include "engine/transfers/peer_scheduler.hpp"

namespace linkspan::engine {

Status PeerScheduler::submit(const std::shared_ptr<TransferState>& transfer, OfferFrame offer) {
  const base::MutexLock lock(mutex_);
  touch();
  if (Status status = check_room(); !status.ok()) return status;
  admit(transfer);
  Status status = base::or_no_memory([&]() LINKSPAN_TSA(no_thread_safety_analysis) {
    if (!transfer->streams.mark) return begin_message(*transfer, offer);
    transfer->message->stage = MessageState::Stage::waiting_on_stream;
    transfer->message->frame = std::move(offer);
    stream_waits_.add(transfer, base::Clock::steady().now());
    return Status();
  });
  if (!status.ok()) dismiss(*transfer);
  return status;
}

/// Adds a message to the Rendezvous; a send's offer goes out. After an error, or where there is no
/// memory, it has not begun.
Status PeerScheduler::begin_message(TransferState& transfer, OfferFrame& offer) {
  rendezvous_.post(transfer);
  if (!transfer.message->sends) return {};
  try {
    Status status = send_offer(transfer, offer);
    if (!status.ok()) rendezvous_.retract(transfer);
    return status;
  } catch (...) {
    rendezvous_.retract(transfer);
    throw;
  }
}

/// Sends the offer of a send. no_resource: the socket has no room.
Status PeerScheduler::send_offer(TransferState& transfer, OfferFrame& offer) {
  Status sent = frames_.send(control::FrameOp::offer, transfer.id, offer.payload, offer.fds);
  if (sent.code() == Code::no_resource && !offer.fds.empty())
    sent = frames_.send(control::FrameOp::offer, transfer.id, offer.bare);
  return sent;
}

Status PeerScheduler::send_frame(control::FrameOp op, std::uint64_t id,
                                 std::span<const std::byte> payload) {
  if (status_.state != PeerState::up) return not_connected(session_->id());
  return frames_.send_or_queue(op, id, payload);
}

/// Returns the first transport that reaches the peer's memory by a path that both sides allow.
Result<std::size_t> PeerScheduler::transport_for(const MessageState& x, Op op,
                                                 std::uint64_t bytes) const {
  Status refused;
  const auto& mappings = x.offer.memory.region->mappings;
  for (std::size_t i = 0; i < mappings.size(); ++i) {
    const transport::Endpoint* const endpoint = endpoints_.at(i);
    if (mappings[i] == nullptr || endpoint == nullptr) continue;
    if (x.require.empty() && x.offer.memory.require.empty()) return i;
    const Explanation explained = endpoint->explain(op, x.memory.registration()->region(),
                                                    *mappings[i], {.blocks = 1, .bytes = bytes});
    const bool leaves_host = transports_[i]->capabilities().leaves_host;
    const std::string& required =
        satisfies(explained.path, leaves_host, x.require) ? x.offer.memory.require : x.require;
    if (satisfies(explained.path, leaves_host, required)) return i;
    if (!refused.ok() && !required.starts_with(transports_[i]->name())) continue;
    std::string what = "path \"";
    what.append(required).append("\" was required, this message takes ");
    what.append(explained.path.empty() ? "no path" : "\"" + explained.path + "\"").append(": ");
    refused = Status(Code::unsupported, Scope::request, what.append(explained.reason));
  }
  if (!refused.ok()) return refused;
  return Status(Code::unreachable, Scope::request, "no transport reaches the peer's memory");
}

/// Copies by a one-sided transfer.
Status PeerScheduler::copy(TransferState& whole) {
  MessageState& x = *whole.message;
  if (!memory::fits(x.offer.memory.offset, x.offer.bytes, x.offer.memory.region->bytes))
    return {Code::corrupt, Scope::request, "the message leaves the peer's region"};
  const auto& local = x.memory.registration();
  const Block block{x.memory.offset(), x.offer.memory.offset, x.offer.bytes};
  if (status_.state != PeerState::up)
    return {Code::disconnected, Scope::peer, "its peer is not connected any more"};
  const Op op = x.sends ? Op::write : Op::read;
  const auto transport = transport_for(x, op, block.bytes);
  if (!transport.ok()) return transport.status();
  auto copy = base::make_recycled<TransferState>();  // shared as every transfer is
  copy->peer = whole.peer;
  copy->op = op;
  copy->bytes = block.bytes;
  copy->local = local;
  copy->remote = x.offer.memory.region;
  copy->transport = *transport;
  copy->batches.own = make_plan({block}, transports_[*transport]->capabilities());
  copy->batches.count = copy->batches.own.batches;
  copy->batches.failover.allowed = x.require.empty() && x.offer.memory.require.empty();
  copy->whole = &whole;
  copy->ending.submitted = base::Clock::steady().now();
  copy->ending.deadline = base::Time::max();  // the whole's deadline applies
  if (!local->acquire())
    return {Code::canceled, Scope::request, "the memory was deregistered meanwhile"};
  Status status = start(copy);  // although new transfers may be refused
  if (!status.ok())
    local->release();
  else
    x.copy = copy->id;
  return status;
}

void PeerScheduler::stop(TransferState& whole) {
  if (const auto copy = transfers_.find(whole.message->copy); copy != transfers_.end())
    cancel_now(*copy->second);
}

void PeerScheduler::matched(const TransferState& transfer) {
  const MessageState& x = *transfer.message;
  if (x.observer != nullptr) x.observer->matched(log_, x);
}

void PeerScheduler::end(TransferState& transfer, const Status& status) {
  const std::shared_ptr<TransferState> kept = transfers_.at(transfer.id);
  make_room_to_end();
  const MessageState& x = *transfer.message;
  if (status.ok() && x.observer != nullptr) x.observer->ended(log_, x);
  garbage_.push_back(kept);  // its caller still uses it
  transfer.end = status;
  if (transfer.message->memory.release().ok())
    finalize(transfer);
  else
    awaiting_release_.push_back(kept);
}

void PeerScheduler::drop(std::shared_ptr<void> what) { garbage_.push_back(std::move(what)); }

void PeerScheduler::progress_messages() {
  frames_.flush();
  // Handled one by one: if there is no memory for one, the others stay for the next call.
  for (std::size_t left = copied_.size(); left != 0; --left) {
    const auto [id, status] = copied_.front();
    TransferState& whole = *transfers_.at(id);
    whole.message->copy = 0;
    rendezvous_.copied(whole, status);
    copied_.erase(copied_.begin());
  }
  for (std::size_t i = 0; i < awaiting_release_.size();) {
    const std::shared_ptr<TransferState> transfer = awaiting_release_[i];
    if (!transfer->message->memory.release().ok()) {
      ++i;
      continue;
    }
    awaiting_release_.erase(awaiting_release_.begin() + static_cast<std::ptrdiff_t>(i));
    finalize(*transfer);
  }
}

PeerScheduler::OfferedMemory PeerScheduler::offered(std::uint64_t serial) {
  const base::MutexLock lock(mutex_);
  const TemporaryRegistration* const memory = rendezvous_.offered(serial);
  if (memory == nullptr) return {};
  return {memory->registration(), memory->keys()};
}

bool PeerScheduler::awaits_import(std::uint64_t serial) {
  const base::MutexLock lock(mutex_);
  return rendezvous_.awaits(serial);
}

}  // namespace linkspan::engine
