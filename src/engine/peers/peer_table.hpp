// engine/peers/peer_table.hpp - all peers of an Engine, and those of them that have work.
//
// On the path of a byte: only the look-up of the peer. The ProgressThread polls the peers that have
// work, and asks the others once a second whether they have got some.
// Threads: any thread, also under a PeerScheduler's mutex except where noted; poll() one thread.
// Invariants: no PeerScheduler is called or destroyed under this mutex. A peer that has work is in
// the list of active ones, or the thread that gave it the work is about to add it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "engine/transfers/peer_scheduler.hpp"

namespace linkspan::engine {

class PeerTable final : public SchedulerEvents {
 public:
  /// Adds a peer, whose Endpoints may have work already.
  void add(const std::shared_ptr<PeerScheduler>& peer) LINKSPAN_EXCLUDES(mutex_);
  /// Returns null if there is no such peer, or it is gone and forgotten.
  std::shared_ptr<PeerScheduler> find(std::uint64_t peer) const LINKSPAN_EXCLUDES(mutex_);
  /// Does the same for a caller that gives the peer work, and activates it.
  std::shared_ptr<PeerScheduler> find_active(std::uint64_t peer) LINKSPAN_EXCLUDES(mutex_);
  std::vector<std::shared_ptr<PeerScheduler>> all() const LINKSPAN_EXCLUDES(mutex_);
  /// Returns the Session of a peer, or null if it is gone or is being closed by this side.
  std::shared_ptr<control::Session> session_of(std::uint64_t peer) const LINKSPAN_EXCLUDES(mutex_);
  /// Returns the peer if operations with it may begin, else disconnected with the reason.
  Result<std::shared_ptr<PeerScheduler>> usable(std::uint64_t peer) const LINKSPAN_EXCLUDES(mutex_);

  /// Returns why find() finds no peer: the refusal of close(), else disconnected.
  Status absent(std::uint64_t peer) const LINKSPAN_EXCLUDES(mutex_);

  /// Makes progress with the peers that have work. Returns how many transfers became quiet.
  std::size_t progress(base::Time now) LINKSPAN_EXCLUDES(mutex_);
  /// Does the same, destroys objects that have ended, and forgets peers that are gone. Returns when
  /// to call it again.
  transport::PollHint poll(base::Time now) LINKSPAN_EXCLUDES(mutex_);

  /// Refuses further submissions, also with peers that are added later, and cancels all transfers.
  void close(const Status& why) LINKSPAN_EXCLUDES(mutex_);
  /// Returns whether close() of `peer`, or of the Engine if it is nullopt, still has to wait.
  bool is_close_blocked(CloseBlocker blocker, std::optional<std::uint64_t> peer) const
      LINKSPAN_EXCLUDES(mutex_);
  /// Lists the connected remote peers that close() waits for.
  std::vector<std::shared_ptr<control::Session>> remote_close_blockers(
      CloseBlocker blocker, std::optional<std::uint64_t> peer) const LINKSPAN_EXCLUDES(mutex_);
  /// Counts transfers that became quiet and peers that are gone.
  std::uint64_t changes() const noexcept { return changes_; }
  /// Waits until changes() is not `seen`, until the deadline, or for an interrupt. Returns true for
  /// an interrupt.
  bool wait_for_change(std::uint64_t seen, base::Deadline deadline) LINKSPAN_EXCLUDES(mutex_);
  /// Forgets all peers. Requires close() and nothing in flight, or the end of the process.
  void destroy() LINKSPAN_EXCLUDES(mutex_);
  /// Returns the sum of the counters of forgotten peers.
  PeerCounters forgotten() const LINKSPAN_EXCLUDES(mutex_);

  // SchedulerEvents
  std::uint64_t new_transfer_id() noexcept override { return ++last_transfer_; }
  void activate(PeerScheduler& peer) noexcept override LINKSPAN_EXCLUDES(mutex_);
  void on_quiet() noexcept override LINKSPAN_EXCLUDES(mutex_);

 private:
  static constexpr Duration kIdleCheck = std::chrono::seconds(1);

  void add_to_active(const std::shared_ptr<PeerScheduler>& peer) noexcept LINKSPAN_REQUIRES(mutex_);
  std::shared_ptr<PeerScheduler> active_at(std::size_t index) const LINKSPAN_EXCLUDES(mutex_);
  std::size_t active_count() const LINKSPAN_EXCLUDES(mutex_);
  bool deactivate(PeerScheduler& peer) LINKSPAN_EXCLUDES(mutex_);
  void forget(PeerScheduler& peer) LINKSPAN_EXCLUDES(mutex_);
  bool find_work(base::Time now) LINKSPAN_EXCLUDES(mutex_);

  std::atomic<std::uint64_t> last_transfer_{0};
  std::atomic<std::uint64_t> changes_{0};
  std::atomic<unsigned> waiters_{0};  // in wait_for_change()
  base::Time check_idle_at_{};        // poll()'s
  mutable base::Mutex mutex_;
  base::Condition changed_;
  std::map<std::uint64_t, std::shared_ptr<PeerScheduler>> peers_ LINKSPAN_GUARDED_BY(mutex_);
  // Its capacity is that of peers_, so that activate() allocates nothing.
  std::vector<std::shared_ptr<PeerScheduler>> active_ LINKSPAN_GUARDED_BY(mutex_);
  Status refusal_ LINKSPAN_GUARDED_BY(mutex_);
  PeerCounters forgotten_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::engine
