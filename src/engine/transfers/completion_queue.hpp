// engine/transfers/completion_queue.hpp - the state behind a CompletionQueue: cookies and an
// eventfd.
//
// On the path of a byte: after its end, when PeerScheduler::finalize() has made the transfer
// quiet. Off it: when FutureState::finish() has ended a call.
// Threads: any thread. Its lock is a leaf, acquired under the locks of schedulers and futures of
// several Engines.
// Invariants: the eventfd is readable exactly while there is a cookie. Both change under the lock,
// so no completion is missed, and one system call reports all that come before a pop().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/fork.hpp"
#include "base/mutex.hpp"
#include "base/wake_event.hpp"
#include "linkspan/status.hpp"

namespace linkspan::engine {

class CompletionQueueState {
 public:
  static Result<std::shared_ptr<CompletionQueueState>> create();

  int fd() const noexcept { return event_.fd(); }
  /// Returns true in a forked child, which shares the descriptor: a read there would take the
  /// parent's event.
  bool forked() const noexcept { return fork_.forked(); }
  /// Makes room for one push(), which then allocates nothing.
  void reserve() LINKSPAN_EXCLUDES(mutex_);
  void push(std::uint64_t cookie) noexcept LINKSPAN_EXCLUDES(mutex_);
  std::vector<std::uint64_t> pop(std::size_t at_most) LINKSPAN_EXCLUDES(mutex_);

 private:
  explicit CompletionQueueState(base::WakeEvent event) : event_(std::move(event)) {}

  const base::ForkWatch fork_;
  const base::WakeEvent event_;
  base::Mutex mutex_;
  std::vector<std::uint64_t> cookies_ LINKSPAN_GUARDED_BY(mutex_);
  std::size_t reserved_ LINKSPAN_GUARDED_BY(mutex_) = 0;  // push() that are to come
};

/// The entry of a transfer or a call in a CompletionQueue. Guarded by the lock of its owner.
struct CompletionEntry {
  std::atomic<bool> added{false};  // at most once
  std::uint64_t cookie = 0;
  std::shared_ptr<CompletionQueueState> queue;  // until the owner is done; also handles'
};

}  // namespace linkspan::engine
