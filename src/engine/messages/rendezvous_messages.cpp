// Rendezvous: frames of the peer. The peer may invent their numbers and send them in any order.
#include <algorithm>
#include <utility>

#include "engine/messages/rendezvous.hpp"

namespace linkspan::engine {
namespace {

using control::FrameOp;
using control::MessageFinished;
using Stage = MessageState::Stage;

Status message_error(Code code, std::string what) {
  return {code, Scope::request, std::move(what)};
}

Status corrupt(const char* what) { return {Code::corrupt, Scope::peer, what}; }

}  // namespace

Status Rendezvous::on_offer(std::uint64_t id, const control::MessageOffer& offer,
                            Result<std::shared_ptr<ImportedRegion>> region) {
  if (lost_) return {};
  if (id == 0) return corrupt("an offer without a number");  // which a receive has unmatched
  if (offers_.contains(id) || matched_receives_.contains(id)) return corrupt("an offer twice");
  const Key key{offer.space, offer.tag};
  MatchQueue& queue = queues_[key];
  if (queue.receives.empty() && offers_.size() >= kOffers) {
    if (queue.offers.empty()) queues_.erase(key);
    if (region.ok() && *region != nullptr) host_.drop(*std::move(region));
    (void)finish(
        id, {.status = message_error(Code::no_resource,
                                     std::to_string(kOffers) + " messages wait to be received")});
    return {};
  }
  Offer kept{.id = id,
             .bytes = offer.bytes,
             .sequence = ++last_sequence_,
             .memory = {.kind = offer.kind,
                        .serial = offer.serial,
                        .offset = offer.offset,
                        .require = offer.require,
                        .region = nullptr,
                        .import_error = region.status()}};
  if (region.ok()) kept.memory.region = *std::move(region);
  queue.offers.push_back(std::move(kept));
  offers_[id] = key;
  match_all(key);
  return {};
}

Status Rendezvous::on_accept(std::uint64_t id, const control::MessageAccept& accept,
                             const Result<std::shared_ptr<ImportedRegion>>& region) {
  const auto found = sends_.find(id);
  if (found == sends_.end()) {
    (void)finish(id, {.by_sender = true,
                      .status = message_error(Code::not_found, "no such message is sent")});
    return {};
  }
  TransferState& send = *found->second;
  MessageState& x = *send.message;
  if (x.stage != Stage::unmatched || send.bytes == 0) return corrupt("a message accepted twice");
  if (x.withdrawn) return {};  // the peer gets, or has got, the withdrawal
  x.offer.memory = {.kind = accept.kind,
                    .serial = accept.serial,
                    .offset = accept.offset,
                    .require = accept.require,
                    .region = region.ok() ? *region : nullptr,
                    .import_error = region.status()};
  host_.matched(send);
  begin(send);
  return {};
}

Status Rendezvous::on_finished(std::uint64_t id, const MessageFinished& finished) {
  auto& ours = finished.by_sender ? matched_receives_ : sends_;
  const auto found = ours.find(id);
  if (found == ours.end()) return {};  // it crossed a frame of ours
  TransferState& transfer = *found->second;
  MessageState& x = *transfer.message;
  if (x.stage != (finished.by_sender ? Stage::peer_copying : Stage::unmatched))
    return corrupt("the end of a message that this side copies");
  if (finished.untouched) {
    if (!finished.by_sender || !x.withdrawn) return corrupt("a message given back unasked");
    rollback_match(transfer, true);
    end_unmatched(transfer);
    match_all(key_of(x));
    return {};
  }
  if (x.sends && finished.status.ok()) {
    x.offer.memory.kind = finished.kind;
    host_.matched(transfer);
  }
  end(transfer, finished.status);
  return {};
}

void Rendezvous::on_withdraw(std::uint64_t id, bool by_sender) {
  const auto confirm = [&](Code code, const char* what, bool untouched = false) {
    (void)finish(
        id, {.by_sender = !by_sender, .untouched = untouched, .status = message_error(code, what)});
  };
  if (!by_sender) {
    const auto found = sends_.find(id);
    if (found == sends_.end()) return confirm(Code::not_found, "no such message is sent");
    MessageState& x = *found->second->message;
    if (x.stage == Stage::copying) return host_.stop(*found->second);
    if (x.stage != Stage::importing) return;  // our withdrawal is on its way
    if (PeerMemory old = std::exchange(x.offer.memory, {}); old.region) host_.drop(old.region);
    x.stage = Stage::unmatched;
    return confirm(Code::canceled, "nothing was written yet", true);
  }
  if (const auto offer = offers_.find(id); offer != offers_.end()) {
    const auto at = queues_.find(offer->second);
    auto& offers = at->second.offers;
    const auto its = std::find_if(offers.begin(), offers.end(),
                                  [id](const Offer& each) { return each.id == id; });
    if (its->memory.region != nullptr) host_.drop(std::move(its->memory.region));
    offers.erase(its);
    if (offers.empty() && at->second.receives.empty()) queues_.erase(at);
    offers_.erase(offer);
    return confirm(Code::canceled, "nobody had received it");
  }
  const auto matched = matched_receives_.find(id);
  if (matched == matched_receives_.end())
    return confirm(Code::not_found, "no such message was offered");
  TransferState& receive = *matched->second;
  if (receive.message->stage == Stage::copying) return host_.stop(receive);
  const bool over = receive.message->withdrawn;
  const Key key = key_of(*receive.message);
  rollback_match(receive, false);
  confirm(Code::canceled, "withdrawn before it was received");
  if (over) return end_unmatched(receive);
  queues_[key].reinsert(receive);
  match_all(key);
}

void Rendezvous::on_imported(std::uint64_t serial,
                             const Result<std::shared_ptr<ImportedRegion>>& region) {
  if (!awaits(serial)) return;
  // The peer's socket was full, or the key did not open, perhaps because its owner is dying; a
  // dying owner does not answer again, and is lost then.
  const bool full = !region.ok() && region.status().code() == Code::no_resource;
  if (full || (!region.ok() && retried_imports_.insert(serial).second)) {
    (void)host_.send_frame(FrameOp::import, kBySerial | serial, control::encode_import({}, serial));
    return;
  }
  retried_imports_.erase(serial);
  if (region.ok())
    imports_[serial] = *region;
  else
    imports_.erase(serial);
  std::vector<TransferState*> waiting;
  for (const auto* all : {&sends_, &matched_receives_})
    for (const auto& [id, transfer] : *all)
      if (transfer->message->stage == Stage::importing &&
          transfer->message->offer.memory.serial == serial)
        waiting.push_back(transfer);
  for (TransferState* transfer : waiting) {
    if (!region.ok())
      conclude(*transfer, region.status());
    else
      begin(*transfer);
  }
}

}  // namespace linkspan::engine
