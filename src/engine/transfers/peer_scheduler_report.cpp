// Reports of a PeerScheduler to operators: lines of dump(), metrics, and the counting for them.
#include <algorithm>

#include "engine/diagnostics/report.hpp"
#include "engine/transfers/peer_scheduler.hpp"

namespace linkspan::engine {
namespace {

Work work_of(const TransferState& transfer) {
  if (transfer.message != nullptr) return transfer.message->sends ? Work::send : Work::receive;
  return transfer.op == Op::write ? Work::write : Work::read;
}

std::string text_of(const transport::Served& served) {
  return std::string(served.op == Op::write ? "write" : "read") + " (" +
         std::to_string(served.bytes) + " bytes have moved, none for " + age_of(served.still) +
         ") on";
}

std::string name_of_peer(const control::Session& session) {
  return std::to_string(session.id()) + " " + quoted(session.hello().engine);
}

}  // namespace

void PeerScheduler::count_end(const TransferState& transfer) {
  if (transfer.whole != nullptr) return;  // counted as part of the whole
  if (!transfer.end.ok()) {
    ++counters_.failed[static_cast<std::size_t>(transfer.end.code())];
    return;
  }
  std::string_view path = transfer.batches.path_taken.path;
  if (path.empty()) path = transfer.bytes == 0 ? "none" : "by_peer";
  counters_.succeeded(path, work_of(transfer), transfer.bytes,
                      base::Clock::steady().now() - transfer.ending.submitted);
}

PeerMetrics PeerScheduler::metrics() {
  const base::MutexLock lock(mutex_);
  return {.id = std::to_string(session_->id()),
          .name = session_->hello().engine,
          .up = status_.state == PeerState::up,
          .outstanding = transfers_.size(),
          .queued = queue_.size(),
          .counters = counters_};
}

std::size_t PeerScheduler::unquiet() {
  const base::MutexLock lock(mutex_);
  return transfers_.size();
}

bool PeerScheduler::has_keys() {
  const base::MutexLock lock(mutex_);
  return status_.state != PeerState::gone && !regions_.exported.empty();
}

std::string PeerScheduler::describe_paths() {
  const base::MutexLock lock(mutex_);
  std::string text;
  endpoints_.for_each([&](std::size_t i, const transport::Endpoint& endpoint) {
    text.append(text.empty() ? " by " : "; ").append(transports_[i]->name());
    text += " (" + endpoint.describe_paths() + ")";
  });
  return text;
}

std::pair<std::vector<std::uint64_t>, std::size_t> PeerScheduler::oldest(std::size_t at_most) {
  const base::MutexLock lock(mutex_);
  std::vector<std::uint64_t> ids;
  for (const auto& [id, transfer] : transfers_) {
    if (ids.size() == at_most) break;
    ids.push_back(id);
  }
  return {std::move(ids), transfers_.size()};
}

std::string PeerScheduler::uses_of(std::uint64_t serial) {
  const base::MutexLock lock(mutex_);
  std::string text;
  for (const transport::Served& each : endpoints_.served())
    if (each.serial == serial)
      text += (text.empty() ? "" : ", ") + ("peer " + name_of_peer(*session_)) + ": a " +
              text_of(each) + " it";
  return text;
}

std::string PeerScheduler::line_of(std::uint64_t transfer, base::Time now) {
  const base::MutexLock lock(mutex_);
  const auto found = transfers_.find(transfer);
  return found == transfers_.end() ? std::string() : line_of(*found->second, now);
}

std::string PeerScheduler::line(base::Time now) {
  std::vector<std::shared_ptr<void>> kept;  // perhaps last references, dropped without the mutex
  const base::MutexLock lock(mutex_);
  constexpr std::array kStates = {"up", "lost: its connection has ended, its process lives",
                                  "gone"};
  std::string text = "peer " + name_of_peer(*session_) + " (" + session_->place() +
                     "): " + kStates[static_cast<std::size_t>(status_.state)] + ", met " +
                     age_of(now - status_.since) + " ago, incarnation " +
                     hex_of(session_->incarnation()) + ", by";
  std::string names_of_transports;
  endpoints_.for_each([&](std::size_t i, const transport::Endpoint&) {
    names_of_transports.append(" ").append(transports_[i]->name());
  });
  text += (names_of_transports.empty() ? " no transport" : names_of_transports) + "; " +
          std::to_string(transfers_.size()) + " not quiet, " + std::to_string(queue_.size()) +
          " queued";
  if (frames_.unsent() != 0)
    text += ", " + std::to_string(frames_.unsent()) + " messages wait for room in its socket";
  Listing imported("imported");
  std::string names;
  for (const auto& each : regions_.imported) {
    std::shared_ptr<ImportedRegion> region = each.lock();
    if (region == nullptr) continue;
    if (imported.room())
      names += (names.empty() ? "" : ", ") + quoted(region->name) + " (" +
               std::string(name_of(region->kind)) + ", " + std::to_string(region->bytes) +
               " bytes)";
    kept.push_back(std::move(region));
  }
  if (!names.empty()) text += "; imported " + names + imported.rest();
  Listing exported("keys");
  std::string serials;
  for (const std::uint64_t serial : regions_.exported)
    if (exported.room()) serials += (serials.empty() ? "" : ", ") + std::to_string(serial);
  if (!serials.empty()) text += "; was sent the keys of region " + serials + exported.rest();
  Listing served("transfers of it");
  std::string theirs;
  for (const transport::Served& each : endpoints_.served())
    if (served.room())
      theirs +=
          (theirs.empty() ? "" : ", ") + text_of(each) + " region " + std::to_string(each.serial);
  if (!theirs.empty()) text += "; does a " + theirs + served.rest();
  return text + "\n";
}

std::string PeerScheduler::line_of(const TransferState& transfer, base::Time now) {
  std::string text = "transfer " + std::to_string(transfer.id) + ": ";
  if (transfer.message != nullptr) {
    text += rendezvous_.describe(transfer) + ", peer " + std::to_string(transfer.peer);
  } else {
    text += std::string(transfer.op == Op::write ? "write of " : "read of ") +
            std::to_string(transfer.bytes) + " bytes, " +
            (transfer.whole != nullptr ? "for transfer " + std::to_string(transfer.whole->id)
                                       : "region " + std::to_string(transfer.local->id().serial)) +
            (transfer.op == Op::write ? " to " : " from ") + quoted(transfer.remote->name) +
            (transfer.all_pairs().size() == 1
                 ? ""
                 : " and " + std::to_string(transfer.all_pairs().size() - 1) +
                       " more pairs of regions,") +
            " of peer " + std::to_string(transfer.peer);
  }
  text += ", " + age_of(now - transfer.ending.submitted) + " old";
  if (transfer.ending.deadline != base::Time::max())
    text += transfer.ending.deadline > now ? ", " + age_of(transfer.ending.deadline - now) + " left"
                                           : std::string(", its deadline has passed");
  if (transfer.message == nullptr) {
    text += ", path " + std::string(transfer.batches.path_taken.path.empty()
                                        ? "not chosen yet"
                                        : transfer.batches.path_taken.path);
    const std::size_t batches = transfer.batches.count;
    if (!transfer.ending.first_error.ok())
      text += std::string(", failed as ") + name_of(transfer.ending.first_error.code());
    else if (batches > 1 || transfer.batches.posted < batches)
      text += ", " + std::to_string(transfer.batches.posted) + " of " + std::to_string(batches) +
              " batches posted";
    text += ", " + std::to_string(transfer.batches.in_flight) + " in flight";
  }
  if (transfer.ending.expired)
    text += ", asked to end at its deadline";
  else if (transfer.ending.canceled)
    text += ", cancel asked";
  return text + "; waits for " + waits_for(transfer) + "\n";
}

std::string PeerScheduler::waits_for(const TransferState& transfer) {
  const char* const stream = "a stream of the user's";
  if (stream_waits_.contains(transfer)) return stream;
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
  const bool stops = transfer.ending.is_asked() || !transfer.ending.first_error.ok();
  if (transfer.ending.finishing) return "room in the socket, for its notification";
  if (transfer.batches.in_flight == 0)
    return "room, of " + std::to_string(queue_.size()) + " queued for its peer";
  std::string who =
      transfer.batches.path_taken.by_peer ? "the peer, which copies" : "the copy here";
  if (transfer.streams.after.device != nullptr) who += ", behind a stream of the user's";
  return stops ? who + ", to be quiet" : who;
}

}  // namespace linkspan::engine
