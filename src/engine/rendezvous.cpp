#include "engine/rendezvous.hpp"

#include <algorithm>
#include <utility>

namespace linkspan::engine {
namespace {

using control::FrameOp;
using control::MessageFinished;
using Stage = Exchange::Stage;

Status request_error(Code code, std::string what) {
  return {code, Scope::request, std::move(what)};
}

bool alive(const ImportedRegion& region) {
  return std::all_of(region.mappings.begin(), region.mappings.end(),
                     [](const auto& mapping) { return mapping == nullptr || mapping->alive(); });
}

/// Of a line in the order of `turn`.
template <class Each, class Turn>
void insert_at(std::deque<Each>& line, Each each, Turn turn) {
  const auto later = [&, mine = turn(each)](const Each& other) { return turn(other) > mine; };
  line.insert(std::find_if(line.begin(), line.end(), later), std::move(each));
}

}  // namespace

void Rendezvous::Line::put_back(Offer offer) {
  insert_at(offers, std::move(offer), [](const Offer& each) { return each.turn; });
}

void Rendezvous::Line::put_back(TransferState& receive) {
  insert_at(receives, &receive, [](const TransferState* each) { return each->exchange->turn; });
}

void Rendezvous::post(TransferState& transfer) {
  Exchange& x = *transfer.exchange;
  PeerMatchState& meeting = meetings_[transfer.peer];
  if (x.sends) {
    x.wire_id = transfer.id;
    x.bytes = transfer.bytes;
    meeting.sends[transfer.id] = &transfer;
    return;
  }
  x.turn = ++turns_;
  meeting.lines[key_of(x)].receives.push_back(&transfer);
  pair_up(meeting, key_of(x));
}

void Rendezvous::pair_up(PeerMatchState& meeting, const Key& key) {
  const auto found = meeting.lines.find(key);
  if (found == meeting.lines.end()) return;
  Line& line = found->second;
  while (!line.offers.empty() && !line.receives.empty()) {
    Offer offer = std::move(line.offers.front());
    line.offers.pop_front();
    meeting.offers.erase(offer.id);
    TransferState& receive = *line.receives.front();
    line.receives.pop_front();
    match(meeting, receive, std::move(offer));
  }
  if (line.offers.empty() && line.receives.empty()) meeting.lines.erase(found);
}

void Rendezvous::match(PeerMatchState& meeting, TransferState& receive, Offer offer) {
  Exchange& x = *receive.exchange;
  x.wire_id = offer.id;
  x.bytes = offer.bytes;
  x.offer_turn = offer.turn;
  x.peer = std::move(offer.memory);
  meeting.taken[x.wire_id] = &receive;
  if (x.bytes > receive.bytes)
    return conclude(
        receive, request_error(Code::truncated, std::to_string(x.bytes) + " bytes were sent, and " +
                                                    std::to_string(receive.bytes) +
                                                    " can be received; nothing was written"));
  host_.matched(receive);
  if (x.bytes == 0) return conclude(receive, {});
  if (x.kind != MemoryKind::device) return begin(meeting, receive);
  x.stage = Stage::lent;
  (void)host_.tell(receive.peer, FrameOp::accept, x.wire_id,
                   control::encode(control::MessageAccept{.kind = x.kind,
                                                          .serial = x.memory.serial(),
                                                          .offset = x.memory.offset(),
                                                          .require = x.require,
                                                          .descriptor = x.descriptor}));
}

/// This side copies, as soon as it has the peer's region.
void Rendezvous::begin(PeerMatchState& meeting, TransferState& transfer) {
  Exchange& x = *transfer.exchange;
  x.stage = Stage::importing;
  if (!x.peer.import_error.ok()) return conclude(transfer, x.peer.import_error);
  if (x.peer.region == nullptr) {
    const auto [import, fresh] = meeting.imports.try_emplace(x.peer.serial);
    if (import->second != nullptr && alive(*import->second)) {
      x.peer.region = import->second;
    } else {
      const bool asked = !fresh && import->second == nullptr;
      if (meeting.imports.size() > kImports) {
        meeting.imports.erase(import);
        return conclude(transfer, request_error(Code::no_resource, "too many regions of the peer"));
      }
      if (import->second != nullptr) host_.drop(std::exchange(import->second, nullptr));
      if (!asked)
        (void)host_.tell(transfer.peer, FrameOp::import, kBySerial | x.peer.serial,
                         control::encode_import({}, x.peer.serial));
      return;
    }
  }
  x.stage = Stage::copying;
  if (const Status status = host_.copy(transfer); !status.ok()) conclude(transfer, status);
}

void Rendezvous::copied(TransferState& transfer, const Status& status) {
  conclude(transfer, status);
}

/// This side is the one that knows how it ended.
void Rendezvous::conclude(TransferState& transfer, const Status& status) {
  const Exchange& x = *transfer.exchange;
  Status ended = settled(transfer, status);
  const Status told =
      finish(transfer.peer, x.wire_id, {.by_sender = x.sends, .status = ended, .kind = x.kind});
  if (ended.ok() && x.sends && !told.ok())
    ended = Status(Code::disconnected, Scope::peer,
                   "the data was written, but its peer left before it could be told");
  end(transfer, ended);
}

void Rendezvous::end(TransferState& transfer, const Status& status) {
  Exchange& x = *transfer.exchange;
  PeerMatchState& meeting = meetings_[transfer.peer];
  if (x.sends)
    meeting.sends.erase(transfer.id);
  else if (x.wire_id != 0)
    meeting.taken.erase(x.wire_id);
  x.stage = Stage::over;
  const Status ended = settled(transfer, status);
  if (!x.sends) transfer.bytes = ended.ok() ? x.bytes : 0;
  if (x.peer.region != nullptr) host_.drop(std::exchange(x.peer.region, nullptr));
  host_.end(transfer, ended);
}

/// Its owner wanted it to, and nothing came.
void Rendezvous::end_unsent(TransferState& receive) {
  end(receive, request_error(Code::canceled, "nobody sent to it"));
}

Status Rendezvous::finish(std::uint64_t peer, std::uint64_t id, const MessageFinished& finished) {
  return host_.tell(peer, FrameOp::finished, id, control::encode(finished));
}

/// Asks the peer, which may touch the memory, to let go. Its `finished` ends the transfer.
Status Rendezvous::withdraw(TransferState& transfer) {
  Exchange& x = *transfer.exchange;
  if (std::exchange(x.withdrawn, true)) return {};
  return host_.tell(transfer.peer, FrameOp::withdraw, x.wire_id, control::encode_withdraw(x.sends));
}

void Rendezvous::leave_line(PeerMatchState& meeting, TransferState& receive) {
  const auto found = meeting.lines.find(key_of(*receive.exchange));
  if (found == meeting.lines.end()) return;
  auto& receives = found->second.receives;
  receives.erase(std::find(receives.begin(), receives.end(), &receive));
  if (receives.empty() && found->second.offers.empty()) meeting.lines.erase(found);
}

/// The receive is as before its match; its offer stands in its place again, or is gone.
void Rendezvous::unmatch(PeerMatchState& meeting, TransferState& receive, bool offer_stays) {
  Exchange& x = *receive.exchange;
  meeting.taken.erase(x.wire_id);
  PeerMemory memory = std::exchange(x.peer, {});
  if (memory.region != nullptr && meeting.imports.contains(memory.serial))
    host_.drop(
        std::exchange(memory.region, nullptr));  // it is found there again, if it still lives
  if (offer_stays) {
    meeting.offers[x.wire_id] = key_of(x);
    meeting.lines[key_of(x)].put_back({x.wire_id, x.bytes, x.offer_turn, std::move(memory)});
  } else if (memory.region != nullptr) {
    host_.drop(std::move(memory.region));
  }
  x.wire_id = x.bytes = 0;
  x.withdrawn = false;
  x.stage = Stage::unmatched;
}

void Rendezvous::stop(TransferState& transfer) {
  Exchange& x = *transfer.exchange;
  PeerMatchState& meeting = meetings_[transfer.peer];
  switch (x.stage) {
    case Stage::held:
      return;  // the TransferScheduler's
    case Stage::unmatched:
      if (x.sends) {
        if (!meeting.lost) (void)withdraw(transfer);
        return;
      }
      leave_line(meeting, transfer);
      return end_unsent(transfer);
    case Stage::importing:  // nothing was touched
      if (x.sends) {
        if (PeerMemory old = std::exchange(x.peer, {}); old.region) host_.drop(old.region);
        x.stage = Stage::unmatched;
        (void)withdraw(transfer);
        return;
      }
      unmatch(meeting, transfer, true);
      end_unsent(transfer);
      return pair_up(meeting, key_of(x));
    case Stage::copying:
      return host_.stop(transfer);
    case Stage::lent:
      if (!meeting.lost) (void)withdraw(transfer);
      return;
    case Stage::over:
      return;
  }
}

bool Rendezvous::awaits(std::uint64_t peer, std::uint64_t serial) const {
  const auto meeting = meetings_.find(peer);
  if (meeting == meetings_.end()) return false;
  const auto found = meeting->second.imports.find(serial);
  return found != meeting->second.imports.end() && found->second == nullptr;
}

const TemporaryRegistration* Rendezvous::offered(std::uint64_t peer, std::uint64_t serial) const {
  const auto meeting = meetings_.find(peer);
  if (meeting == meetings_.end() || serial == 0) return nullptr;
  for (const auto* all : {&meeting->second.sends, &meeting->second.taken})
    for (const auto& [id, transfer] : *all)
      if (transfer->exchange->memory.serial() == serial) return &transfer->exchange->memory;
  return nullptr;
}

std::vector<std::shared_ptr<void>> Rendezvous::sweep(std::uint64_t peer) {
  std::vector<std::shared_ptr<void>> dead;
  const auto meeting = meetings_.find(peer);
  if (meeting == meetings_.end()) return dead;
  std::erase_if(meeting->second.imports, [&](auto& import) {
    if (import.second == nullptr || alive(*import.second)) return false;
    dead.push_back(std::move(import.second));
    return true;
  });
  return dead;
}

void Rendezvous::lost(std::uint64_t peer) {
  const auto found = meetings_.find(peer);
  if (found == meetings_.end() || std::exchange(found->second.lost, true)) return;
  PeerMatchState& meeting = found->second;
  std::vector<TransferState*> over;  // what the peer cannot touch
  for (auto& [key, line] : std::exchange(meeting.lines, {})) {
    over.insert(over.end(), line.receives.begin(), line.receives.end());
    for (Offer& offer : line.offers)
      if (offer.memory.region != nullptr) host_.drop(std::move(offer.memory.region));
  }
  meeting.offers.clear();
  for (const auto* all : {&meeting.sends, &meeting.taken})
    for (const auto& [id, transfer] : *all) {
      const Exchange& x = *transfer->exchange;
      const bool untouchable = x.stage == Stage::unmatched && transfer->bytes == 0;
      if (x.stage == Stage::importing || untouchable) over.push_back(transfer);
    }
  for (TransferState* transfer : over)
    end(*transfer, Status(Code::disconnected, Scope::peer, "its peer is lost"));
}

void Rendezvous::gone(std::uint64_t peer) {
  lost(peer);
  const auto found = meetings_.find(peer);
  if (found == meetings_.end()) return;
  std::vector<TransferState*> over;
  for (const auto* all : {&found->second.sends, &found->second.taken})
    for (const auto& [id, transfer] : *all)
      if (transfer->exchange->stage != Stage::copying) over.push_back(transfer);
  for (TransferState* transfer : over)
    end(*transfer, Status(Code::disconnected, Scope::peer, "its peer is gone"));
}

std::shared_ptr<void> Rendezvous::forget(std::uint64_t peer) {
  const auto found = meetings_.find(peer);
  if (found == meetings_.end()) return nullptr;
  auto over =
      std::make_shared<PeerMatchState>(std::move(found->second));  // its imports end off the lock
  meetings_.erase(found);
  return over;
}

std::string Rendezvous::describe(const TransferState& transfer) const {
  const Exchange& x = *transfer.exchange;
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
