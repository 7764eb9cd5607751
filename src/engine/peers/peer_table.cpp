#include "engine/peers/peer_table.hpp"

#include <algorithm>
#include <utility>

#include "base/interrupt.hpp"

namespace linkspan::engine {

using When = transport::PollHint::When;

void PeerTable::add(const std::shared_ptr<PeerScheduler>& peer) {
  Status refusal;
  {
    const base::MutexLock lock(mutex_);
    if (active_.capacity() < peers_.size() + 1) active_.reserve(2 * (peers_.size() + 1));
    peers_[peer->id()] = peer;
    refusal = refusal_;
  }
  activate(*peer);
  if (!refusal.ok()) peer->refuse(refusal);
}

std::shared_ptr<PeerScheduler> PeerTable::find(std::uint64_t peer) const {
  const base::MutexLock lock(mutex_);
  const auto found = peers_.find(peer);
  return found == peers_.end() ? nullptr : found->second;
}

std::shared_ptr<PeerScheduler> PeerTable::find_active(std::uint64_t peer) {
  const base::MutexLock lock(mutex_);
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return nullptr;
  add_to_active(found->second);
  return found->second;
}

std::vector<std::shared_ptr<PeerScheduler>> PeerTable::all() const {
  std::vector<std::shared_ptr<PeerScheduler>> all;
  const base::MutexLock lock(mutex_);
  all.reserve(peers_.size());
  for (const auto& [id, peer] : peers_) all.push_back(peer);
  return all;
}

std::shared_ptr<control::Session> PeerTable::session_of(std::uint64_t peer) const {
  const auto found = find(peer);
  return found == nullptr || found->closing() ? nullptr : found->session();
}

Result<std::shared_ptr<PeerScheduler>> PeerTable::usable(std::uint64_t peer) const {
  auto found = find(peer);
  if (found == nullptr) return absent(peer);
  if (Status status = found->may_begin(); !status.ok()) return status;
  return found;
}

Status PeerTable::absent(std::uint64_t peer) const {
  const base::MutexLock lock(mutex_);
  return refusal_.ok() ? not_connected(peer) : refusal_;
}

void PeerTable::activate(PeerScheduler& peer) noexcept {
  const base::MutexLock lock(mutex_);
  if (const auto found = peers_.find(peer.id()); found != peers_.end())
    add_to_active(found->second);
}

void PeerTable::add_to_active(const std::shared_ptr<PeerScheduler>& peer) noexcept {
  if (peer->active) return;
  peer->active = true;
  active_.push_back(peer);
}

/// Removes an idle peer from the list of active ones. Adds it again and returns false if it got
/// work meanwhile.
bool PeerTable::deactivate(PeerScheduler& peer) {
  {
    const base::MutexLock lock(mutex_);
    peer.active = false;
    std::erase_if(active_, [&](const auto& each) { return each.get() == &peer; });
  }
  if (!peer.has_work()) return true;
  activate(peer);
  return false;
}

void PeerTable::forget(PeerScheduler& peer) {
  const PeerMetrics last = peer.metrics();
  const base::MutexLock lock(mutex_);
  forgotten_.add(last.counters);
  std::erase_if(active_, [&](const auto& each) { return each.get() == &peer; });
  peers_.erase(peer.id());
}

/// Activates idle peers that have got work by no call of the engine, such as a write of the peer on
/// a data connection, whose pauses have a bound. Returns whether there was one.
bool PeerTable::find_work(base::Time now) {
  if (now < check_idle_at_) return false;
  bool found = false;
  for (const auto& peer : all()) {
    if (peer->active || !peer->has_work()) continue;
    activate(*peer);
    found = true;
  }
  check_idle_at_ = now + kIdleCheck;
  return found;
}

std::shared_ptr<PeerScheduler> PeerTable::active_at(std::size_t index) const {
  const base::MutexLock lock(mutex_);
  return index < active_.size() ? active_[index] : nullptr;
}

std::size_t PeerTable::active_count() const {
  const base::MutexLock lock(mutex_);
  return active_.size();
}

std::size_t PeerTable::progress(base::Time now) {
  std::size_t ended = 0;
  for (std::size_t i = 0; const auto peer = active_at(i); ++i) ended += peer->progress(now);
  return ended;
}

transport::PollHint PeerTable::poll(base::Time now) {
  transport::PollHint next;
  std::size_t left = active_count();  // peers that get work meanwhile are polled next time
  for (std::size_t i = 0; left != 0; --left) {
    const auto peer = active_at(i);
    if (peer == nullptr) break;
    const PeerScheduler::Polled polled = peer->poll(now);
    const transport::PollHint& hint = polled.hint;
    if (polled.over) {
      forget(*peer);
    } else if (hint.when == When::idle && polled.rested) {
      if (!deactivate(*peer)) next = transport::earlier(next, {.when = When::now});
    } else {
      next = transport::earlier(next, hint);
      ++i;
    }
  }
  if (find_work(now)) next = {.when = When::now};
  return next;
}

void PeerTable::close(const Status& why) {
  {
    const base::MutexLock lock(mutex_);
    refusal_ = why;
  }
  for (const auto& peer : all()) peer->refuse(why);
}

bool PeerTable::is_close_blocked(CloseBlocker blocker, std::optional<std::uint64_t> peer) const {
  if (peer) {
    const auto found = find(*peer);
    return found != nullptr && found->blocks_its_close(blocker);
  }
  return std::ranges::any_of(all(),
                             [&](const auto& each) { return each->blocks_engine_close(blocker); });
}

std::vector<std::shared_ptr<control::Session>> PeerTable::remote_close_blockers(
    CloseBlocker blocker, std::optional<std::uint64_t> peer) const {
  std::vector<std::shared_ptr<control::Session>> sessions;
  for (const auto& each : all())
    if (each->id() == peer.value_or(each->id()) && each->session()->is_remote() &&
        each->is_connected() &&
        (peer ? each->blocks_its_close(blocker) : each->blocks_engine_close(blocker)))
      sessions.push_back(each->session());
  return sessions;
}

void PeerTable::on_quiet() noexcept {
  ++changes_;
  if (waiters_ == 0) return;
  const base::MutexLock lock(mutex_);
  changed_.notify_all();
}

bool PeerTable::wait_for_change(std::uint64_t seen, base::Deadline deadline) {
  ++waiters_;
  const base::MutexLock lock(mutex_);
  const bool interrupted =
      changes_ == seen && base::wait_or_interrupted(changed_, mutex_, deadline);
  --waiters_;
  return interrupted;
}

void PeerTable::destroy() {
  for (const auto& peer : all()) peer->close_endpoints();
  std::map<std::uint64_t, std::shared_ptr<PeerScheduler>> peers;  // destroyed without the mutex
  std::vector<std::shared_ptr<PeerScheduler>> active;
  const base::MutexLock lock(mutex_);
  peers.swap(peers_);
  active.swap(active_);
}

PeerCounters PeerTable::forgotten() const {
  const base::MutexLock lock(mutex_);
  return forgotten_;
}

}  // namespace linkspan::engine
