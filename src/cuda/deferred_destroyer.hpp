// cuda/deferred_destroyer.hpp - defers the closing of what the driver mapped or pinned for us while
// a user's stream may stall.
//
// Closing a CUDA IPC handle, unpinning host memory and freeing pinned memory wait for all that is
// in flight on the GPU, also for a stalled stream, and submissions of all other threads wait with
// them (fact: Held.ClosingAHandle, fact: Held.UnregisteringHostMemory, fact:
// Held.FreeingPinnedMemory). So the death of a peer whose transfer waits for such a stream would
// delay the transfers of all other peers. Therefore each transfer that waits for or blocks a user's
// stream has a DeferralGuard, and a closing waits until the guards that were there before it have
// ended. A guard made later counts only for `patience`, so that a program whose streams always move
// gets its memory back. Between two closings there is a pause, because the driver's lock is not
// fair. Off the path of a byte: mappings and pinned memory end here.
// Threads: any thread; closings run in order, on a thread of their own.
// Invariants: each closing runs exactly once, at the latest in drain() or the destructor.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "base/fork.hpp"
#include "base/mutex.hpp"

namespace linkspan::cuda {

class DeferredDestroyer {
 public:
  /// While it exists, later closings wait. Movable; ends with its destruction.
  class DeferralGuard {
   public:
    DeferralGuard() = default;
    DeferralGuard(DeferralGuard&& other) noexcept
        : destroyer_(std::exchange(other.destroyer_, nullptr)), number_(other.number_) {}
    DeferralGuard& operator=(DeferralGuard&& other) noexcept {
      std::swap(destroyer_, other.destroyer_);
      std::swap(number_, other.number_);
      return *this;
    }
    DeferralGuard(const DeferralGuard&) = delete;
    DeferralGuard& operator=(const DeferralGuard&) = delete;
    ~DeferralGuard() {
      if (destroyer_ != nullptr) destroyer_->release_guard(number_);
    }

   private:
    friend class DeferredDestroyer;
    DeferralGuard(DeferredDestroyer& destroyer, std::uint64_t number)
        : destroyer_(&destroyer), number_(number) {}

    DeferredDestroyer* destroyer_ = nullptr;  // null: no guard
    std::uint64_t number_ = 0;
  };

  explicit DeferredDestroyer(Duration patience = std::chrono::seconds(10)) : patience_(patience) {}
  DeferredDestroyer(const DeferredDestroyer&) = delete;
  DeferredDestroyer& operator=(const DeferredDestroyer&) = delete;
  ~DeferredDestroyer();  ///< Requires: no DeferralGuard is left. Runs all pending closings.

  /// Returns a guard. Waits until a closing that has begun is over, but at most a second: otherwise
  /// it would wait in the driver for the stream that is about to stall, and what that stream
  /// waits for might wait for the driver.
  DeferralGuard defer() LINKSPAN_EXCLUDES(mutex_);
  /// Returns true if there is no DeferralGuard.
  bool unguarded() const LINKSPAN_EXCLUDES(mutex_);
  /// Runs `closing` once no DeferralGuard of now is left. Without memory to defer it, runs it here.
  /// In a forked child it is dropped, because it would close what belongs to the parent.
  void run(std::function<void()> closing) noexcept LINKSPAN_EXCLUDES(mutex_);
  /// Deletes the object by run().
  template <class T>
  void end(std::unique_ptr<T> value) noexcept {
    run([ending = value.release()] { delete ending; });
  }
  /// Returns a pointer whose last owner deletes the object by run(), or at once when the
  /// DeferredDestroyer no longer exists.
  template <class T>
  static std::shared_ptr<T> end_by(const std::shared_ptr<DeferredDestroyer>& destroyer,
                                   std::unique_ptr<T> value) {
    return {value.release(), [weak = std::weak_ptr(destroyer)](T* ending) {
              std::unique_ptr<T> ended(ending);
              if (const auto there = weak.lock()) there->end(std::move(ended));
            }};
  }
  /// Returns when all closings have run, whatever guards exist. Waits for stalled streams.
  void drain() LINKSPAN_EXCLUDES(mutex_);

 private:
  struct DeferredClose {
    std::function<void()> run;
    std::uint64_t after;  // guards with smaller numbers are waited for
    base::Time since;
  };

  void release_guard(std::uint64_t number) LINKSPAN_EXCLUDES(mutex_);
  void start() LINKSPAN_REQUIRES(mutex_);
  void loop() LINKSPAN_EXCLUDES(mutex_);
  void run_first() LINKSPAN_REQUIRES(mutex_);  // releases the lock meanwhile
  /// Returns how long the first closing has to wait at least.
  Duration to_wait() const LINKSPAN_REQUIRES(mutex_);

  const base::ForkWatch fork_;
  const Duration patience_;
  mutable base::Mutex mutex_;
  base::Condition changed_;
  std::set<std::uint64_t> guards_ LINKSPAN_GUARDED_BY(mutex_);
  std::uint64_t last_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  std::deque<DeferredClose> pending_ LINKSPAN_GUARDED_BY(mutex_);  // the first may be running
  base::Time next_ LINKSPAN_GUARDED_BY(mutex_){};                  // earliest time of the next one
  bool is_closing_ LINKSPAN_GUARDED_BY(mutex_) = false;            // the first is running
  unsigned draining_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  bool ending_ LINKSPAN_GUARDED_BY(mutex_) = false;
  std::jthread thread_ LINKSPAN_GUARDED_BY(mutex_);  // starts with the first closing
};

}  // namespace linkspan::cuda
