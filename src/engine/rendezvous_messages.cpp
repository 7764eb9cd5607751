// What the peer says to a Rendezvous: numbers that it may make up, in any order.
#include <algorithm>
#include <utility>

#include "engine/rendezvous.hpp"

namespace linkspan::engine {
namespace {

using control::FrameOp;
using control::MessageFinished;
using Stage = Exchange::Stage;

Status message_error(Code code, std::string what) {
  return {code, Scope::request, std::move(what)};
}

Status corrupt(const char* what) { return {Code::corrupt, Scope::peer, what}; }

}  // namespace

Status Rendezvous::on_offer(std::uint64_t peer, std::uint64_t id,
                            const control::MessageOffer& offer,
                            Result<std::shared_ptr<ImportedRegion>> region) {
  PeerMatchState& meeting = meetings_[peer];
  if (meeting.lost) return {};
  if (id == 0) return corrupt("an offer without a number");  // which a receive has unmatched
  if (meeting.offers.contains(id) || meeting.taken.contains(id)) return corrupt("an offer twice");
  const Key key{offer.space, offer.tag};
  Line& line = meeting.lines[key];
  if (line.receives.empty() && meeting.offers.size() >= kOffers) {
    if (line.offers.empty()) meeting.lines.erase(key);
    if (region.ok() && *region != nullptr) host_.drop(*std::move(region));
    (void)finish(peer, id,
                 {.status = message_error(Code::no_resource, std::to_string(kOffers) +
                                                                 " messages wait to be received")});
    return {};
  }
  Offer kept{.id = id,
             .bytes = offer.bytes,
             .turn = ++turns_,
             .memory = {.kind = offer.kind,
                        .serial = offer.serial,
                        .offset = offer.offset,
                        .require = offer.require,
                        .region = nullptr,
                        .import_error = region.status()}};
  if (region.ok()) kept.memory.region = *std::move(region);
  line.offers.push_back(std::move(kept));
  meeting.offers[id] = key;
  pair_up(meeting, key);
  return {};
}

Status Rendezvous::on_accept(std::uint64_t peer, std::uint64_t id,
                             const control::MessageAccept& accept,
                             const Result<std::shared_ptr<ImportedRegion>>& region) {
  PeerMatchState& meeting = meetings_[peer];
  const auto found = meeting.sends.find(id);
  if (found == meeting.sends.end()) {
    (void)finish(
        peer, id,
        {.by_sender = true, .status = message_error(Code::not_found, "no such message is sent")});
    return {};
  }
  TransferState& send = *found->second;
  Exchange& x = *send.exchange;
  if (x.stage != Stage::unmatched || send.bytes == 0) return corrupt("a message accepted twice");
  if (x.withdrawn) return {};  // it will hear of that, or has
  x.peer = {.kind = accept.kind,
            .serial = accept.serial,
            .offset = accept.offset,
            .require = accept.require,
            .region = region.ok() ? *region : nullptr,
            .import_error = region.status()};
  host_.matched(send);
  begin(meeting, send);
  return {};
}

Status Rendezvous::on_finished(std::uint64_t peer, std::uint64_t id,
                               const MessageFinished& finished) {
  PeerMatchState& meeting = meetings_[peer];
  auto& ours = finished.by_sender ? meeting.taken : meeting.sends;
  const auto found = ours.find(id);
  if (found == ours.end()) return {};  // it crossed our own
  TransferState& transfer = *found->second;
  Exchange& x = *transfer.exchange;
  if (x.stage != (finished.by_sender ? Stage::lent : Stage::unmatched))
    return corrupt("the end of a message that this side copies");
  if (finished.untouched) {
    if (!finished.by_sender || !x.withdrawn) return corrupt("a message given back unasked");
    unmatch(meeting, transfer, true);
    end_unsent(transfer);
    pair_up(meeting, key_of(x));
    return {};
  }
  if (x.sends && finished.status.ok()) {
    x.peer.kind = finished.kind;
    host_.matched(transfer);
  }
  end(transfer, finished.status);
  return {};
}

void Rendezvous::on_withdraw(std::uint64_t peer, std::uint64_t id, bool by_sender) {
  PeerMatchState& meeting = meetings_[peer];
  const auto let_go = [&](Code code, const char* what, bool untouched = false) {
    (void)finish(
        peer, id,
        {.by_sender = !by_sender, .untouched = untouched, .status = message_error(code, what)});
  };
  if (!by_sender) {
    const auto found = meeting.sends.find(id);
    if (found == meeting.sends.end()) return let_go(Code::not_found, "no such message is sent");
    Exchange& x = *found->second->exchange;
    if (x.stage == Stage::copying) return host_.stop(*found->second);
    if (x.stage != Stage::importing) return;  // our own withdrawal is on its way
    if (PeerMemory old = std::exchange(x.peer, {}); old.region) host_.drop(old.region);
    x.stage = Stage::unmatched;
    return let_go(Code::canceled, "nothing was written yet", true);
  }
  if (const auto offer = meeting.offers.find(id); offer != meeting.offers.end()) {
    const auto at = meeting.lines.find(offer->second);
    auto& offers = at->second.offers;
    const auto its = std::find_if(offers.begin(), offers.end(),
                                  [id](const Offer& each) { return each.id == id; });
    if (its->memory.region != nullptr) host_.drop(std::move(its->memory.region));
    offers.erase(its);
    if (offers.empty() && at->second.receives.empty()) meeting.lines.erase(at);
    meeting.offers.erase(offer);
    return let_go(Code::canceled, "nobody had received it");
  }
  const auto taken = meeting.taken.find(id);
  if (taken == meeting.taken.end()) return let_go(Code::not_found, "no such message was offered");
  TransferState& receive = *taken->second;
  if (receive.exchange->stage == Stage::copying) return host_.stop(receive);
  const bool over = receive.exchange->withdrawn;
  const Key key = key_of(*receive.exchange);
  unmatch(meeting, receive, false);
  let_go(Code::canceled, "withdrawn before it was received");
  if (over) return end_unsent(receive);
  meeting.lines[key].put_back(receive);
  pair_up(meeting, key);
}

void Rendezvous::imported(std::uint64_t peer, std::uint64_t serial,
                          const Result<std::shared_ptr<ImportedRegion>>& region) {
  if (!awaits(peer, serial)) return;
  PeerMatchState& meeting = meetings_[peer];
  // Its socket was full; or the key did not open, perhaps because its owner is dying: that one will
  // not answer again, and is lost.
  const bool full = !region.ok() && region.status().code() == Code::no_resource;
  if (full || (!region.ok() && meeting.asked_again.insert(serial).second)) {
    (void)host_.tell(peer, FrameOp::import, kBySerial | serial, control::encode_import({}, serial));
    return;
  }
  meeting.asked_again.erase(serial);
  if (region.ok())
    meeting.imports[serial] = *region;
  else
    meeting.imports.erase(serial);
  std::vector<TransferState*> waiting;
  for (const auto* all : {&meeting.sends, &meeting.taken})
    for (const auto& [id, transfer] : *all)
      if (transfer->exchange->stage == Stage::importing &&
          transfer->exchange->peer.serial == serial)
        waiting.push_back(transfer);
  for (TransferState* transfer : waiting) {
    if (!region.ok())
      conclude(*transfer, region.status());
    else
      begin(meeting, *transfer);
  }
}

}  // namespace linkspan::engine
