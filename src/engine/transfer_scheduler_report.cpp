// Reports of a TransferScheduler to operators: dump(), metrics(), and the counting for them.
#include <algorithm>
#include <charconv>

#include "engine/diagnostics/report.hpp"
#include "engine/transfer_scheduler.hpp"

namespace linkspan::engine {
namespace {

Work work_of(const TransferState& transfer) {
  if (transfer.message != nullptr) return transfer.message->sends ? Work::send : Work::receive;
  return transfer.op == Op::write ? Work::write : Work::read;
}

std::string name_of_peer(const PeerRecord& peer) {
  return std::to_string(peer.session->id()) + " " + quoted(peer.session->hello().engine);
}

std::string text_of(const transport::Served& served) {
  return std::string(served.op == Op::write ? "write" : "read") + " (" +
         std::to_string(served.bytes) + " bytes have moved, none for " + age_of(served.still) +
         ") on";
}

}  // namespace

void TransferScheduler::count_end(const TransferState& transfer) {
  PeerRecord* peer = find_peer(transfer.peer);
  if (peer == nullptr) return;
  --peer->unquiet;
  if (transfer.whole != nullptr) return;  // counted as part of the whole
  PeerCounters& counters = peer->counters;
  if (!transfer.end.ok()) {
    ++counters.failed[static_cast<std::size_t>(transfer.end.code())];
    return;
  }
  std::string_view path = transfer.path_taken.path;
  if (path.empty()) path = transfer.bytes == 0 ? "none" : "by_peer";
  counters.succeeded(path, work_of(transfer), transfer.bytes,
                     base::Clock::steady().now() - transfer.submitted);
}

void TransferScheduler::count_import(std::uint64_t id,
                                     const std::shared_ptr<ImportedRegion>& region) {
  PeerRecord* peer = find_peer(id);
  if (peer == nullptr) return;
  ++(region != nullptr ? peer->counters.imports : peer->counters.imports_failed);
  if (region == nullptr) return;
  auto& all = peer->imported_regions;
  if (all.size() == all.capacity())  // seldom, however many come and go
    std::erase_if(all, [](const auto& each) { return each.expired(); });
  all.push_back(region);
}

void TransferScheduler::count_export(std::uint64_t id, std::uint64_t serial) {
  PeerRecord* peer = find_peer(id);
  if (peer == nullptr) return;
  ++peer->counters.keys_sent;
  if (serial != 0) peer->exported_serials.insert(serial);
}

void TransferScheduler::retracted(std::uint64_t serial) {
  for (auto& [id, peer] : peers_) peer->exported_serials.erase(serial);
}

EngineMetrics TransferScheduler::metrics() {
  EngineMetrics all;
  PeerMetrics rest{.id = "gone", .name = {}, .counters = forgotten_counters_};
  std::size_t others = 0;
  for (const auto& [id, peer] : peers_) {
    if (peer->state == PeerState::up) ++all.peers_up;
    if (all.peers.size() < EngineMetrics::kPeers) {
      all.peers.push_back({.id = std::to_string(id),
                           .name = peer->session->hello().engine,
                           .outstanding = peer->unquiet,
                           .queued = peer->queue.size(),
                           .counters = peer->counters});
      continue;
    }
    ++others;
    rest.outstanding += peer->unquiet;
    rest.queued += peer->queue.size();
    rest.counters.add(peer->counters);
  }
  if (others != 0) rest.id = "others";
  all.peers.push_back(std::move(rest));
  for (const auto& transport : transports_)
    for (const transport::CopyCount& each : transport->copies()) all.copies.push_back(each);
  return all;
}

std::string TransferScheduler::dump() {
  const base::Time now = base::Clock::steady().now();
  std::string text;
  Listing peers("peers");
  for (const auto& [id, peer] : peers_)
    if (peers.room()) text += line_of(*peer, now);
  text += peers.more();
  // The oldest transfers, and those of them that wait for a stream, whose list has another order.
  Listing listed("transfers");
  std::vector<const TransferState*> waiting;
  const std::uint64_t last = transfers_.size() <= Listing::kMax
                                 ? last_id_
                                 : std::next(transfers_.begin(), Listing::kMax)->first;
  for (const auto& each : waiting_on_stream_)
    if (each->id <= last) waiting.push_back(each.get());
  for (const auto& [id, transfer] : transfers_)
    if (listed.room())
      text +=
          line_of(*transfer,
                  std::find(waiting.begin(), waiting.end(), transfer.get()) != waiting.end(), now);
  return text + listed.more();
}

std::string TransferScheduler::line_of(const PeerRecord& peer, base::Time now) {
  constexpr std::array kStates = {"up", "lost: its connection has ended, its process lives",
                                  "gone"};
  std::string text = "peer " + name_of_peer(peer) + " (" + peer.session->place() +
                     "): " + kStates[static_cast<std::size_t>(peer.state)] + ", met " +
                     age_of(now - peer.since) + " ago, incarnation " +
                     hex_of(peer.session->incarnation()) + ", by";
  std::string names_of_transports;
  for (std::size_t i = 0; i < transports_.size(); ++i)
    if (peer.endpoints[i] != nullptr)
      names_of_transports.append(" ").append(transports_[i]->name());
  text += (names_of_transports.empty() ? " no transport" : names_of_transports) + "; " +
          std::to_string(peer.unquiet) + " not quiet, " + std::to_string(peer.queue.size()) +
          " queued";
  if (!peer.unsent.empty())
    text += ", " + std::to_string(peer.unsent.size()) + " messages wait for room in its socket";
  Listing imported("imported");
  std::string names;
  for (const auto& each : peer.imported_regions) {
    std::shared_ptr<ImportedRegion> region = each.lock();
    if (region == nullptr) continue;
    if (imported.room())
      names += (names.empty() ? "" : ", ") + quoted(region->name) + " (" +
               std::string(name_of(region->kind)) + ", " + std::to_string(region->bytes) +
               " bytes)";
    garbage_.push_back(std::move(region));  // perhaps the last reference
  }
  if (!names.empty()) text += "; imported " + names + imported.rest();
  Listing exported("keys");
  std::string serials;
  for (const std::uint64_t serial : peer.exported_serials)
    if (exported.room()) serials += (serials.empty() ? "" : ", ") + std::to_string(serial);
  if (!serials.empty()) text += "; was sent the keys of region " + serials + exported.rest();
  Listing served("transfers of it");
  std::string theirs;
  for (const auto& endpoint : peer.endpoints)
    for (const transport::Served& each :
         endpoint != nullptr ? endpoint->served() : std::vector<transport::Served>())
      if (served.room())
        theirs +=
            (theirs.empty() ? "" : ", ") + text_of(each) + " region " + std::to_string(each.serial);
  if (!theirs.empty()) text += "; does a " + theirs + served.rest();
  return text + "\n";
}

std::string TransferScheduler::users_of(std::uint64_t serial) {
  std::string text;
  for (const auto& [id, peer] : peers_)
    for (const auto& endpoint : peer->endpoints)
      for (const transport::Served& each :
           endpoint != nullptr ? endpoint->served() : std::vector<transport::Served>())
        if (each.serial == serial)
          text += (text.empty() ? "" : ", ") + ("peer " + name_of_peer(*peer)) + ": a " +
                  text_of(each) + " it";
  return text;
}

std::string TransferScheduler::line_of(const TransferState& transfer, bool waits_on_stream,
                                       base::Time now) {
  std::string text = "transfer " + std::to_string(transfer.id) + ": ";
  if (transfer.message != nullptr) {
    text += rendezvous_.describe(transfer) + ", peer " + std::to_string(transfer.peer);
  } else {
    text += std::string(transfer.op == Op::write ? "write of " : "read of ") +
            std::to_string(transfer.bytes) + " bytes, " +
            (transfer.whole != nullptr ? "for transfer " + std::to_string(transfer.whole->id)
                                       : "region " + std::to_string(transfer.local->id().serial)) +
            (transfer.op == Op::write ? " to " : " from ") + quoted(transfer.remote->name) +
            " of peer " + std::to_string(transfer.peer);
  }
  text += ", " + age_of(now - transfer.submitted) + " old";
  if (transfer.deadline != base::Time::max())
    text += transfer.deadline > now ? ", " + age_of(transfer.deadline - now) + " left"
                                    : std::string(", its deadline has passed");
  if (transfer.message == nullptr) {
    text += ", path " + std::string(transfer.path_taken.path.empty() ? "not chosen yet"
                                                                     : transfer.path_taken.path);
    const std::size_t batches = transfer.batches;
    if (!transfer.first_error.ok())
      text += std::string(", failed as ") + name_of(transfer.first_error.code());
    else if (batches > 1 || transfer.posted < batches)
      text += ", " + std::to_string(transfer.posted) + " of " + std::to_string(batches) +
              " batches posted";
    text += ", " + std::to_string(transfer.in_flight) + " in flight";
  }
  if (transfer.expired)
    text += ", asked to end at its deadline";
  else if (transfer.canceled)
    text += ", cancel asked";
  return text + "; waits for " + waits_for(transfer, waits_on_stream) + "\n";
}

std::string TransferScheduler::waits_for(const TransferState& transfer, bool waits_on_stream) {
  const char* const stream = "a stream of the user's";
  if (waits_on_stream) return stream;
  if (const MessageState* x = transfer.message.get(); x != nullptr) {
    using enum MessageState::Stage;
    if (x->withdrawn) return "the peer, which was asked to let go of its memory";
    switch (x->stage) {
      case MessageState::Stage::waiting_on_stream:
        return stream;
      case unmatched:
        return x->sends ? "the peer to post the receive" : "the peer to send";
      case importing:
        return "the peer's key and its import";
      case copying:
        return x->copy != 0 ? "its copy, transfer " + std::to_string(x->copy)
                            : std::string("its copy to begin");
      case peer_copying:
        return "the peer, which copies";
      case over:
        return "the peer, which may still copy on its memory";
    }
  }
  const bool stops = transfer.expired || transfer.canceled || !transfer.first_error.ok();
  if (transfer.finishing) return "room in the socket, for its notification";
  if (transfer.in_flight == 0)
    return "room, of " + std::to_string(find_peer(transfer.peer)->queue.size()) +
           " queued for its peer";
  std::string who = transfer.path_taken.by_peer ? "the peer, which copies" : "the copy here";
  if (transfer.stream.device != nullptr) who += ", behind a stream of the user's";
  return stops ? who + ", to be quiet" : who;
}

std::string TransferScheduler::waits_for() {
  std::string names;
  for (auto& [id, peer] : peers_)
    if (peer->unquiet != 0)
      names += (names.empty() ? "" : ", ") + peer->session->describe() + " with " +
               std::to_string(peer->unquiet);
  return names;
}

std::string TransferScheduler::peers_with_keys() {
  std::string names;
  for (auto& [id, peer] : peers_)
    if (peer->state != PeerState::gone && !peer->exported_serials.empty())
      names += (names.empty() ? "" : ", ") + peer->session->describe();
  return names;
}

}  // namespace linkspan::engine
