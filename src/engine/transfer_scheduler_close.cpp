// The end of a TransferScheduler: cancels transfers, answers what close() waits for, ends peers.
#include <algorithm>
#include <utility>

#include "engine/transfer_scheduler.hpp"

namespace linkspan::engine {

bool TransferScheduler::is_idle(const PeerRecord& peer) {
  return std::ranges::all_of(peer.endpoints, [](const auto& endpoint) {
    return endpoint == nullptr || endpoint->poll_hint().when == transport::PollHint::When::idle;
  });
}

bool TransferScheduler::serves_no_peer() {
  return std::ranges::all_of(peers_, [](const auto& entry) { return is_idle(*entry.second); });
}

/// Returns whether Peer::close() of that peer still has to wait. In the last steps it waits until
/// the peer is gone. Copies over a network end with the connection and are not waited for.
bool TransferScheduler::blocks_close(const PeerRecord& peer, CloseBlocker blocker) const {
  switch (blocker) {
    case CloseBlocker::transfers:
      return peer.unquiet != 0;
    case CloseBlocker::copies:
      for (std::size_t i = 0; i < transports_.size(); ++i)
        if (const auto& endpoint = peer.endpoints[i];
            endpoint != nullptr && !transports_[i]->capabilities().leaves_host &&
            endpoint->poll_hint().when != transport::PollHint::When::idle)
          return true;
      return false;
    case CloseBlocker::memory:
    case CloseBlocker::messages:
      break;
  }
  return peer.state != PeerState::gone;
}

bool TransferScheduler::is_close_blocked(CloseBlocker blocker, std::optional<std::uint64_t> of) {
  if (of) {
    const PeerRecord* const peer = find_peer(*of);
    return peer != nullptr && blocks_close(*peer, blocker);
  }
  switch (blocker) {
    case CloseBlocker::transfers:
      return !transfers_.empty();
    case CloseBlocker::copies:
      return !serves_no_peer();
    case CloseBlocker::memory:
      return !peers_with_keys().empty() || !serves_no_peer();
    case CloseBlocker::messages:
      break;
  }
  return !remote_close_blockers(blocker).empty();
}

std::vector<std::shared_ptr<control::Session>> TransferScheduler::remote_close_blockers(
    CloseBlocker blocker, std::optional<std::uint64_t> of) {
  std::vector<std::shared_ptr<control::Session>> all;
  const auto blocks = [&](const PeerRecord& peer) LINKSPAN_REQUIRES(mutex) {
    if (of) return blocks_close(peer, blocker);
    switch (blocker) {
      case CloseBlocker::transfers:
        return peer.unquiet != 0;
      case CloseBlocker::copies:
        return !is_idle(peer);
      case CloseBlocker::memory:
        return !peer.exported_serials.empty() || !is_idle(peer);
      case CloseBlocker::messages:
        break;
    }
    return peer.session->wants_write();
  };
  for (const auto& [id, peer] : peers_)
    if (id == of.value_or(id) && peer->state == PeerState::up && peer->session->is_remote() &&
        blocks(*peer))
      all.push_back(peer->session);
  return all;
}

void TransferScheduler::stop_serving(const PeerRecord& peer) {
  for (const auto& endpoint : peer.endpoints)
    if (endpoint != nullptr) endpoint->stop_serving();
}

void TransferScheduler::close() {
  closed_ = true;
  for (const auto& [id, peer] : peers_) stop_serving(*peer);
  std::vector<std::shared_ptr<TransferState>> all;  // some end at once
  for (auto& [id, transfer] : transfers_) all.push_back(transfer);
  for (const auto& transfer : all) cancel(*transfer);
}

bool TransferScheduler::close(std::uint64_t id) {
  PeerRecord* const peer = find_peer(id);
  if (peer == nullptr || peer->state == PeerState::gone) return false;
  peer->closing = true;
  stop_serving(*peer);
  std::vector<std::shared_ptr<TransferState>> all;
  for (auto& [number, transfer] : transfers_)
    if (transfer->peer == id) all.push_back(transfer);
  for (const auto& transfer : all) cancel(*transfer);
  return true;
}

std::vector<std::shared_ptr<ImportedRegion>> TransferScheduler::imported_from(std::uint64_t id) {
  std::vector<std::shared_ptr<ImportedRegion>> all;
  if (const PeerRecord* const peer = find_peer(id))
    for (const auto& each : peer->imported_regions)
      if (auto region = each.lock()) all.push_back(std::move(region));
  return all;
}

void TransferScheduler::destroy_peers() {
  for (auto& [id, peer] : peers_) {
    for (auto& endpoint : peer->endpoints)
      if (endpoint != nullptr) endpoint->close();
    garbage_.push_back(rendezvous_.forget(id));
    garbage_.push_back(std::shared_ptr<PeerRecord>(std::move(peer)));
  }
  peers_.clear();
}

}  // namespace linkspan::engine
