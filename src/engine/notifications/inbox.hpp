// engine/notifications/inbox.hpp - notifications of peers that the user has not collected yet.
//
// A notification comes by one of three ways: in the ring that the peer shares with us, as a frame
// of a peer without a ring, or with a write over a network. Engine::notifications() collects them
// all, each peer's in the order in which the peer sent them.
// Off the path of a byte.
// Threads: any thread.
// Invariants: what waits here is bounded, for each peer and for all. Notifications beyond that stay
// in the ring, or are dropped and logged if they came otherwise.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/log.hpp"
#include "base/mutex.hpp"
#include "control/session.hpp"
#include "linkspan/engine.hpp"

namespace linkspan::engine {

class Inbox {
 public:
  static constexpr std::size_t kMaxMessage = control::NotificationRing::kMaxMessage;
  /// Bound what waits from one peer, and from all.
  static constexpr std::size_t kMaxWaiting = 65536;
  static constexpr std::size_t kMaxWaitingBytes = std::size_t{16} << 20;
  static constexpr std::size_t kMaxWaitingBytesOfAll = std::size_t{256} << 20;
  /// Bounds what waits from one peer for notifications that were sent earlier.
  static constexpr std::size_t kMaxEarlyBytes = std::size_t{1} << 20;

  explicit Inbox(const base::Log& log) : log_(log) {}

  /// Adds a peer, before its first notification.
  void add_peer(const std::shared_ptr<control::Session>& session)
      LINKSPAN_EXCLUDES(ring_mutex_, mutex_);
  /// Takes over all that has come from a peer that is gone, and forgets the peer.
  void remove_peer(control::Session& session) LINKSPAN_EXCLUDES(ring_mutex_, mutex_);
  /// Receives a notification that came as a frame. Fails the session of a peer that sends too many
  /// bytes.
  void on_frame(control::Session& session, std::vector<std::byte> payload)
      LINKSPAN_EXCLUDES(mutex_);
  /// Collects from the ring of a peer that has asked for it.
  void on_collect_request(control::Session& session) LINKSPAN_EXCLUDES(ring_mutex_, mutex_);
  /// Receives a notification that came with a write. The user gets it after the first `after`
  /// notifications of the control connection.
  void on_write(const control::Session& from, std::vector<std::byte> payload, std::uint64_t after)
      LINKSPAN_EXCLUDES(mutex_);

  /// Returns all notifications that have come.
  std::vector<Notification> collect() LINKSPAN_EXCLUDES(ring_mutex_, mutex_);
  /// Does the same, and waits for at least one until the time-out, close() or an interrupt. Calls
  /// `progress` while it polls.
  std::vector<Notification> collect(
      Duration timeout, const std::function<void()>& progress = [] {})
      LINKSPAN_EXCLUDES(ring_mutex_, mutex_);
  void close() LINKSPAN_EXCLUDES(mutex_);  ///< Ends all waits.

  /// Counts the notifications received from one peer, until it is removed.
  std::uint64_t received(std::uint64_t peer) const LINKSPAN_EXCLUDES(mutex_);
  std::uint64_t received() const LINKSPAN_EXCLUDES(mutex_);  ///< From all peers.

 private:
  /// Holds back notifications that came with a write until notifications that the peer sent earlier
  /// over its control connection have come.
  struct EarlyNotification {
    std::uint64_t after;  // number of control-connection notifications that come first
    std::vector<std::byte> payload;
  };
  struct PeerInbox {
    std::size_t count = 0, bytes = 0, dropped = 0;  // waiting for the user
    std::uint64_t received = 0;
    std::uint64_t by_control = 0;  // received as frames
    std::vector<EarlyNotification> early;
    std::size_t early_bytes = 0;  // cost of `early`
  };

  void drain(control::Session& session, bool last) LINKSPAN_EXCLUDES(ring_mutex_, mutex_);
  bool request_wake_ups() LINKSPAN_EXCLUDES(ring_mutex_);
  void wake_waiters() LINKSPAN_REQUIRES(mutex_);
  bool has_room(const PeerInbox& peer, std::size_t bytes) const LINKSPAN_REQUIRES(mutex_);
  void deliver(const control::Session& from, PeerInbox& peer, std::vector<std::byte> payload)
      LINKSPAN_REQUIRES(mutex_);
  void deliver_early(const control::Session& from, PeerInbox& peer, std::uint64_t by_control)
      LINKSPAN_REQUIRES(mutex_);

  const base::Log& log_;
  base::Mutex ring_mutex_;  // one thread at a time reads rings, which keeps their order
  std::map<std::uint64_t, std::shared_ptr<control::Session>> sessions_
      LINKSPAN_GUARDED_BY(ring_mutex_);  // also control's

  mutable base::Mutex mutex_;
  base::Condition event_;
  std::map<std::uint64_t, PeerInbox> peers_ LINKSPAN_GUARDED_BY(mutex_);
  std::vector<Notification> waiting_ LINKSPAN_GUARDED_BY(mutex_);
  std::size_t bytes_ LINKSPAN_GUARDED_BY(mutex_) = 0;  // of all peers
  std::uint64_t received_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  bool closed_ LINKSPAN_GUARDED_BY(mutex_) = false;
  // Incremented under mutex_: a sleeping collect() then looks again and requests wake-ups anew.
  std::atomic<std::uint64_t> events_{0};
};

}  // namespace linkspan::engine
