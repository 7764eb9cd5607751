#include "engine/messages/rendezvous.hpp"

#include <algorithm>
#include <utility>

#include "base/no_memory.hpp"

namespace linkspan::engine {
namespace {

using control::FrameOp;
using control::MessageFinished;
using Stage = MessageState::Stage;

Status request_error(Code code, std::string what) {
  return {code, Scope::request, std::move(what)};
}

bool alive(const ImportedRegion& region) {
  return std::all_of(region.mappings.begin(), region.mappings.end(),
                     [](const auto& mapping) { return mapping == nullptr || mapping->alive(); });
}

/// Inserts into a queue that is in the order of `sequence_of`.
template <class Each, class Sequence>
void insert_at(std::deque<Each>& queue, Each each, Sequence sequence_of) {
  const auto later = [&, mine = sequence_of(each)](const Each& other) {
    return sequence_of(other) > mine;
  };
  queue.insert(std::find_if(queue.begin(), queue.end(), later), std::move(each));
}

}  // namespace

void Rendezvous::MatchQueue::reinsert(Offer offer) {
  insert_at(offers, std::move(offer), [](const Offer& each) { return each.sequence; });
}

void Rendezvous::MatchQueue::reinsert(TransferState& receive) {
  insert_at(receives, &receive, [](const TransferState* each) { return each->message->sequence; });
}

void Rendezvous::post(TransferState& transfer) {
  MessageState& x = *transfer.message;
  if (x.sends) {
    x.offer.id = transfer.id;
    x.offer.bytes = transfer.bytes;
    sends_[transfer.id] = &transfer;
    return;
  }
  x.sequence = ++last_sequence_;
  queues_[key_of(x)].receives.push_back(&transfer);
  (void)base::or_no_memory([&] {
    match_all(key_of(x));
    return Status();
  });
}

void Rendezvous::match_all(const Key& key) {
  const auto found = queues_.find(key);
  if (found == queues_.end()) return;
  MatchQueue& queue = found->second;
  while (!queue.offers.empty() && !queue.receives.empty()) {
    TransferState& receive = *queue.receives.front();
    matched_receives_[queue.offers.front().id] = &receive;  // may throw, so it comes first
    Offer offer = std::move(queue.offers.front());
    queue.offers.pop_front();
    offers_.erase(offer.id);
    queue.receives.pop_front();
    match(receive, std::move(offer));
  }
  if (queue.offers.empty() && queue.receives.empty()) queues_.erase(found);
}

void Rendezvous::match(TransferState& receive, Offer offer) {
  MessageState& x = *receive.message;
  x.offer = std::move(offer);
  if (x.offer.bytes > receive.bytes)
    return conclude(
        receive,
        request_error(Code::truncated, std::to_string(x.offer.bytes) + " bytes were sent, and " +
                                           std::to_string(receive.bytes) +
                                           " can be received; nothing was written"));
  host_.matched(receive);
  if (x.offer.bytes == 0) return conclude(receive, {});
  if (x.kind != MemoryKind::device) return begin(receive);
  x.stage = Stage::peer_copying;
  (void)host_.send_frame(FrameOp::accept, x.offer.id,
                         control::encode(control::MessageAccept{.kind = x.kind,
                                                                .serial = x.memory.serial(),
                                                                .offset = x.memory.offset(),
                                                                .require = x.require,
                                                                .descriptor = x.descriptor}));
}

/// Starts the copy by this side, after the import of the peer's region.
void Rendezvous::begin(TransferState& transfer) {
  MessageState& x = *transfer.message;
  x.stage = Stage::importing;
  if (!x.offer.memory.import_error.ok()) return conclude(transfer, x.offer.memory.import_error);
  if (x.offer.memory.region == nullptr) {
    const auto [import, fresh] = imports_.try_emplace(x.offer.memory.serial);
    if (import->second != nullptr && alive(*import->second)) {
      x.offer.memory.region = import->second;
    } else {
      const bool asked = !fresh && import->second == nullptr;
      if (imports_.size() > kImports) {
        imports_.erase(import);
        return conclude(transfer, request_error(Code::no_resource, "too many regions of the peer"));
      }
      if (import->second != nullptr) host_.drop(std::exchange(import->second, nullptr));
      if (asked) return;
      try {
        (void)host_.send_frame(FrameOp::import, kBySerial | x.offer.memory.serial,
                               control::encode_import({}, x.offer.memory.serial));
      } catch (...) {
        imports_.erase(import);  // the next message of that region asks
        throw;
      }
      return;
    }
  }
  const Status status = base::or_no_memory([&] { return host_.copy(transfer); });
  if (!status.ok()) return conclude(transfer, status);
  x.stage = Stage::copying;
}

void Rendezvous::copied(TransferState& transfer, const Status& status) {
  conclude(transfer, status);
}

/// Ends a message whose result this side decides, and reports it to the peer.
void Rendezvous::conclude(TransferState& transfer, const Status& status) {
  const MessageState& x = *transfer.message;
  Status ended = transfer.ending.user_status(status);
  const Status sent = finish(x.offer.id, {.by_sender = x.sends, .status = ended, .kind = x.kind});
  if (ended.ok() && x.sends && !sent.ok())
    ended = Status(Code::disconnected, Scope::peer,
                   "the data was written, but its peer left before it could be told");
  end(transfer, ended);
}

void Rendezvous::end(TransferState& transfer, const Status& status) {
  // What may throw comes before the transfer has left the maps, so that its end is tried again.
  MessageState& x = *transfer.message;
  const Status ended = transfer.ending.user_status(status);
  if (x.offer.memory.region != nullptr) host_.drop(x.offer.memory.region);
  x.offer.memory.region = nullptr;
  if (!x.sends) transfer.bytes = ended.ok() ? x.offer.bytes : 0;
  host_.end(transfer, ended);
  x.stage = Stage::over;
  if (x.sends)
    sends_.erase(transfer.id);
  else if (x.offer.id != 0)
    matched_receives_.erase(x.offer.id);
}

/// Ends a receive that its owner canceled before a send matched.
void Rendezvous::end_unmatched(TransferState& receive) {
  end(receive, request_error(Code::canceled, "nobody sent to it"));
}

Status Rendezvous::finish(std::uint64_t id, const MessageFinished& finished) {
  return host_.send_frame(FrameOp::finished, id, control::encode(finished));
}

/// Asks the peer, which may touch the memory, to stop. Its `finished` ends the transfer.
Status Rendezvous::withdraw(TransferState& transfer) {
  MessageState& x = *transfer.message;
  if (std::exchange(x.withdrawn, true)) return {};
  return host_.send_frame(FrameOp::withdraw, x.offer.id, control::encode_withdraw(x.sends));
}

void Rendezvous::dequeue(TransferState& receive) {
  const auto found = queues_.find(key_of(*receive.message));
  if (found == queues_.end()) return;
  auto& receives = found->second.receives;
  std::erase(receives, &receive);  // finds none when stop() runs again after it had no memory
  if (receives.empty() && found->second.offers.empty()) queues_.erase(found);
}

/// Undoes a match. The receive is as before; its offer returns to its place if `offer_stays`.
void Rendezvous::rollback_match(TransferState& receive, bool offer_stays) {
  MessageState& x = *receive.message;
  // A region that was imported by its serial is found in imports_ again, if it still lives.
  const bool region_stays = offer_stays && !imports_.contains(x.offer.memory.serial);
  if (x.offer.memory.region != nullptr && !region_stays)
    host_.drop(std::exchange(x.offer.memory.region, nullptr));
  if (offer_stays) {  // may run again after it had no memory
    const auto key = offers_.emplace(x.offer.id, key_of(x)).first;
    try {
      queues_[key_of(x)].reinsert(x.offer);
    } catch (...) {
      offers_.erase(key);
      throw;
    }
  }
  matched_receives_.erase(x.offer.id);
  x.offer = {};
  x.withdrawn = false;
  x.stage = Stage::unmatched;
}

void Rendezvous::stop(TransferState& transfer) {
  MessageState& x = *transfer.message;
  switch (x.stage) {
    case Stage::waiting_on_stream:
      return;  // the PeerScheduler's
    case Stage::unmatched:
      if (x.sends) {
        if (!lost_) (void)withdraw(transfer);
        return;
      }
      if (x.offer.id != 0)  // matched, and then there was no memory
        return conclude(transfer, request_error(Code::canceled, "canceled"));
      dequeue(transfer);
      return end_unmatched(transfer);
    case Stage::importing:  // nothing was touched
      if (x.sends) {
        if (PeerMemory old = std::exchange(x.offer.memory, {}); old.region) host_.drop(old.region);
        x.stage = Stage::unmatched;
        (void)withdraw(transfer);
        return;
      }
      rollback_match(transfer, true);
      end_unmatched(transfer);
      return match_all(key_of(x));
    case Stage::copying:
      return host_.stop(transfer);
    case Stage::peer_copying:
      if (!lost_) (void)withdraw(transfer);
      return;
    case Stage::over:
      return;
  }
}

bool Rendezvous::awaits(std::uint64_t serial) const {
  const auto found = imports_.find(serial);
  return found != imports_.end() && found->second == nullptr;
}

const TemporaryRegistration* Rendezvous::offered(std::uint64_t serial) const {
  if (serial == 0) return nullptr;
  for (const auto* all : {&sends_, &matched_receives_})
    for (const auto& [id, transfer] : *all)
      if (transfer->message->memory.serial() == serial) return &transfer->message->memory;
  return nullptr;
}

std::vector<std::shared_ptr<void>> Rendezvous::sweep() {
  std::vector<std::shared_ptr<void>> dead;
  std::erase_if(imports_, [&](auto& import) {
    if (import.second == nullptr || alive(*import.second)) return false;
    dead.push_back(std::move(import.second));
    return true;
  });
  return dead;
}

void Rendezvous::on_peer_lost() {
  if (std::exchange(lost_, true)) return;
  std::vector<TransferState*> over;  // what the peer cannot touch
  for (auto& [key, queue] : std::exchange(queues_, {})) {
    over.insert(over.end(), queue.receives.begin(), queue.receives.end());
    for (Offer& offer : queue.offers)
      if (offer.memory.region != nullptr) host_.drop(std::move(offer.memory.region));
  }
  offers_.clear();
  for (const auto* all : {&sends_, &matched_receives_})
    for (const auto& [id, transfer] : *all) {
      const MessageState& x = *transfer->message;
      const bool untouchable = x.stage == Stage::unmatched && transfer->bytes == 0;
      if (x.stage == Stage::importing || untouchable) over.push_back(transfer);
    }
  for (TransferState* transfer : over)
    end(*transfer, Status(Code::disconnected, Scope::peer, "its peer is lost"));
}

void Rendezvous::on_peer_gone() {
  on_peer_lost();
  std::vector<TransferState*> over;
  for (const auto* all : {&sends_, &matched_receives_})
    for (const auto& [id, transfer] : *all)
      if (transfer->message->stage != Stage::copying) over.push_back(transfer);
  for (TransferState* transfer : over)
    end(*transfer, Status(Code::disconnected, Scope::peer, "its peer is gone"));
}

std::string Rendezvous::describe(const TransferState& transfer) const {
  const MessageState& x = *transfer.message;
  constexpr const char* kSend[] = {"behind a stream", "offered", "importing the peer's memory",
                                   "writing",         "",        ""};
  constexpr const char* kReceive[] = {
      "behind a stream", "unmatched",       "importing the peer's memory",
      "reading",         "the peer writes", ""};
  const auto stage = static_cast<std::size_t>(x.stage);
  return std::string(x.sends ? "send of " : "receive of ") + std::to_string(transfer.bytes) +
         " bytes, " +
         (x.space == control::MatchSpace::in_order ? "in order" : "tag " + std::to_string(x.tag)) +
         ", " + (x.sends ? kSend : kReceive)[stage] + (x.withdrawn ? ", asked to let go" : "");
}

}  // namespace linkspan::engine
