#include "engine/notifications/inbox.hpp"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "base/interrupt.hpp"

namespace linkspan::engine {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMinCost = 64;    // of a notification, in bytes
constexpr unsigned kPollsPerYield = 8;  // for each yield to other threads
constexpr Duration kPeerSpin = 50us;    // shorter waits poll without sleeping

std::size_t cost_of(const std::vector<std::byte>& payload) {
  return std::max(payload.size(), kMinCost);
}

}  // namespace

void Inbox::add_peer(const std::shared_ptr<control::Session>& session) {
  {
    const base::MutexLock rings(ring_mutex_);
    sessions_[session->id()] = session;
  }
  const base::MutexLock lock(mutex_);
  wake_waiters();  // the wake-up of this peer's ring is not armed yet
}

void Inbox::remove_peer(control::Session& session) {
  drain(session, true);
  {
    const base::MutexLock rings(ring_mutex_);
    sessions_.erase(session.id());
  }
  // Its data connections have failed and bring no more.
  const base::MutexLock lock(mutex_);
  const auto found = peers_.find(session.id());
  if (found == peers_.end()) return;
  deliver_early(session, found->second, ~std::uint64_t{0});
  peers_.erase(found);
}

void Inbox::on_frame(control::Session& session, std::vector<std::byte> payload) {
  if (payload.size() > kMaxMessage) {
    session.fail(Status(Code::corrupt, Scope::peer, "a notification beyond 64 KiB"));
    return;
  }
  const base::MutexLock lock(mutex_);
  PeerInbox& peer = peers_[session.id()];
  deliver(session, peer, std::move(payload));
  deliver_early(session, peer, ++peer.by_control);
}

void Inbox::on_write(const control::Session& from, std::vector<std::byte> payload,
                     std::uint64_t after) {
  const base::MutexLock lock(mutex_);
  PeerInbox& peer = peers_[from.id()];
  if (after <= peer.by_control) return deliver(from, peer, std::move(payload));
  // The earlier notifications are on their way. Only a peer that lies, or whose control connection
  // is stalled for long, reaches the bound. Then the order is lost, but no notification.
  const std::size_t cost = cost_of(payload);
  if (peer.early_bytes + cost > kMaxEarlyBytes) deliver_early(from, peer, ~std::uint64_t{0});
  peer.early_bytes += cost;
  peer.early.push_back({after, std::move(payload)});
}

/// Delivers those that wait for at most the first `by_control` notifications of the control
/// connection.
void Inbox::deliver_early(const control::Session& from, PeerInbox& peer, std::uint64_t by_control) {
  const auto late = std::stable_partition(
      peer.early.begin(), peer.early.end(),
      [&](const EarlyNotification& each) { return each.after <= by_control; });
  for (auto each = peer.early.begin(); each != late; ++each) {
    peer.early_bytes -= cost_of(each->payload);
    deliver(from, peer, std::move(each->payload));
  }
  peer.early.erase(peer.early.begin(), late);
}

void Inbox::on_collect_request(control::Session& session) {
  drain(session, false);
  // The wake-up may be for notifications that were drained already, and has used up the armed one.
  const base::MutexLock lock(mutex_);
  wake_waiters();
}

/// Drains the peer's ring. Notifications without room here stay there, except at the end of a peer.
void Inbox::drain(control::Session& session, bool last) {
  const base::MutexLock rings(ring_mutex_);
  while (true) {
    if (!last) {
      const base::MutexLock lock(mutex_);
      if (!has_room(peers_[session.id()], kMaxMessage)) return;
    }
    auto next = session.next_notification();
    if (!next) return;
    const base::MutexLock lock(mutex_);
    deliver(session, peers_[session.id()], *std::move(next));
  }
}

void Inbox::wake_waiters() {
  ++events_;
  event_.notify_all();
}

bool Inbox::has_room(const PeerInbox& peer, std::size_t bytes) const {
  return peer.count < kMaxWaiting && peer.bytes + bytes <= kMaxWaitingBytes &&
         bytes_ + bytes <= kMaxWaitingBytesOfAll;
}

void Inbox::deliver(const control::Session& from, PeerInbox& peer, std::vector<std::byte> payload) {
  ++peer.received;
  ++received_;
  const std::size_t cost = cost_of(payload);
  if (has_room(peer, cost)) {
    waiting_.push_back({from.id(), std::move(payload)});
    ++peer.count;
    peer.bytes += cost;
    bytes_ += cost;
    wake_waiters();
  } else if (peer.dropped++ == 0) {
    log_.write_repeated(base::Repeated::peer, base::Level::error, [&] {
      return "notifications of " + from.describe() + " are dropped: " + std::to_string(peer.count) +
             " wait, call Engine::notifications()";
    });
  }
}

std::vector<Notification> Inbox::collect() {
  const base::MutexLock rings(ring_mutex_);
  std::vector<Notification> all;
  {
    const base::MutexLock lock(mutex_);
    for (auto& [id, peer] : peers_) peer.count = peer.bytes = peer.dropped = 0;
    bytes_ = 0;
    all = std::exchange(waiting_, {});
  }
  for (const auto& [id, session] : sessions_) {
    const std::size_t before = all.size();
    while (auto next = session->next_notification()) all.push_back({id, *std::move(next)});
    if (all.size() == before) continue;
    const base::MutexLock lock(mutex_);
    peers_[id].received += all.size() - before;
    received_ += all.size() - before;
  }
  return all;
}

bool Inbox::request_wake_ups() {
  const base::MutexLock rings(ring_mutex_);
  bool silent = true;
  for (const auto& [id, session] : sessions_) silent = session->request_doorbell() && silent;
  return silent;
}

std::vector<Notification> Inbox::collect(Duration timeout, const std::function<void()>& progress) {
  const auto deadline = base::Deadline::in(timeout);
  while (true) {
    const std::uint64_t seen = events_;
    progress();
    std::vector<Notification> all = collect();
    if (!all.empty() || deadline.passed()) return all;
    const bool silent = request_wake_ups();
    const auto spin = base::Deadline::in(silent ? kPeerSpin : Duration::zero());
    for (unsigned polls = 1; events_ == seen && !spin.passed(); ++polls) {
      if (polls % kPollsPerYield != 0) continue;
      progress();
      std::this_thread::yield();
    }
    const base::MutexLock lock(mutex_);
    if (closed_) return all;
    if (silent && events_ == seen && base::wait_or_interrupted(event_, mutex_, deadline))
      return all;
  }
}

void Inbox::close() {
  const base::MutexLock lock(mutex_);
  closed_ = true;
  event_.notify_all();
}

std::uint64_t Inbox::received(std::uint64_t peer) const {
  const base::MutexLock lock(mutex_);
  const auto found = peers_.find(peer);
  return found == peers_.end() ? 0 : found->second.received;
}

std::uint64_t Inbox::received() const {
  const base::MutexLock lock(mutex_);
  return received_;
}

}  // namespace linkspan::engine
