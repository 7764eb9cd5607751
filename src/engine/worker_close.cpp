// The end of a Worker: what is canceled, who holds it up, and what goes with it.
#include <algorithm>
#include <utility>

#include "engine/worker.hpp"

namespace linkspan::engine {

bool Worker::is_idle(const PeerRecord& peer) {
  return std::ranges::all_of(peer.endpoints, [](const auto& endpoint) {
    return endpoint == nullptr || endpoint->next_look().when == transport::NextLook::When::idle;
  });
}

bool Worker::serves_nobody() {
  return std::ranges::all_of(peers_, [](const auto& entry) { return is_idle(*entry.second); });
}

bool Worker::is_held_up(Hold hold) {
  switch (hold) {
    case Hold::transfers:
      return !transfers_.empty();
    case Hold::copies:
      return !serves_nobody();
    case Hold::memory:
      return !holders().empty() || !serves_nobody();
    case Hold::words:
      break;
  }
  return !remote_holders(hold).empty();
}

std::vector<std::shared_ptr<control::Session>> Worker::remote_holders(Hold hold) {
  std::vector<std::shared_ptr<control::Session>> all;
  const auto holds = [hold](const PeerRecord& peer) {
    switch (hold) {
      case Hold::transfers:
        return peer.unquiet != 0;
      case Hold::copies:
        return !is_idle(peer);
      case Hold::memory:
        return !peer.exported.empty() || !is_idle(peer);
      case Hold::words:
        break;
    }
    return peer.session->wants_write();
  };
  for (const auto& [id, peer] : peers_)
    if (peer->state == PeerState::up && peer->session->is_remote() && holds(*peer))
      all.push_back(peer->session);
  return all;
}

void Worker::serve_no_more(const PeerRecord& peer) {
  for (const auto& endpoint : peer.endpoints)
    if (endpoint != nullptr) endpoint->serve_no_more();
}

void Worker::close() {
  closed_ = true;
  for (const auto& [id, peer] : peers_) serve_no_more(*peer);
  std::vector<std::shared_ptr<TransferState>> all;  // some end at once
  for (auto& [id, transfer] : transfers_) all.push_back(transfer);
  for (const auto& transfer : all) cancel(*transfer);
}

void Worker::destroy_peers() {
  for (auto& [id, peer] : peers_) {
    for (auto& endpoint : peer->endpoints)
      if (endpoint != nullptr) endpoint->close();
    garbage_.push_back(rendezvous_.forget(id));
    garbage_.push_back(std::shared_ptr<PeerRecord>(std::move(peer)));
  }
  peers_.clear();
}

}  // namespace linkspan::engine
