// cuda/deferred_destroyer.hpp - the end of what the driver maps or pins for us, put off while a
// stream of the user's may stand still.
//
// To close a CUDA IPC handle, to unpin host memory and to free pinned memory waits for all that is
// in flight on the GPU, a stream that is held too, and the submissions of all other threads wait
// with it (fact: Held.ClosingAHandle, fact: Held.UnregisteringHostMemory, fact:
// Held.FreeingPinnedMemory). So a peer that dies while one transfer waits for a held stream would
// hold up those of all other peers. Therefore: each transfer that follows or holds a stream of the
// user's has a DeferralGuard, and nothing is closed while there is one. A DeferralGuard that came
// later does not count for ever: after the patience only the older ones do, so that a program whose
// streams always move gets its memory back. Between two closings there is a pause: the driver's
// lock is not fair.
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

    DeferredDestroyer* destroyer_ = nullptr;  // null: none
    std::uint64_t number_ = 0;
  };

  explicit DeferredDestroyer(Duration patience = std::chrono::seconds(10)) : patience_(patience) {}
  DeferredDestroyer(const DeferredDestroyer&) = delete;
  DeferredDestroyer& operator=(const DeferredDestroyer&) = delete;
  ~DeferredDestroyer();  ///< No DeferralGuard is left. Runs what is left.

  /// A closing that has begun is over then: in the driver it would wait for the stream that is to
  /// be held, and what that stream waits for would wait for the driver. One that does not end
  /// within a second is not waited for.
  DeferralGuard defer() LINKSPAN_EXCLUDES(mutex_);
  /// Nobody has a DeferralGuard.
  bool unguarded() const LINKSPAN_EXCLUDES(mutex_);
  /// Puts it off until no DeferralGuard of now is left; runs it here where there is no memory to
  /// put it off. In a forked child it is dropped: what it would close is the parent's.
  void run(std::function<void()> closing) noexcept LINKSPAN_EXCLUDES(mutex_);
  /// Deletes it by run().
  template <class T>
  void end(std::unique_ptr<T> value) noexcept {
    run([ending = value.release()] { delete ending; });
  }
  /// Its owner's end deletes it by run(); at once when the DeferredDestroyer is gone.
  template <class T>
  static std::shared_ptr<T> end_by(const std::shared_ptr<DeferredDestroyer>& destroyer,
                                   std::unique_ptr<T> value) {
    return {value.release(), [weak = std::weak_ptr(destroyer)](T* ending) {
              std::unique_ptr<T> ended(ending);
              if (const auto there = weak.lock()) there->end(std::move(ended));
            }};
  }
  /// All that was put off has run, whoever stays. Waits for the streams that stand still.
  void drain() LINKSPAN_EXCLUDES(mutex_);

 private:
  struct DeferredClose {
    std::function<void()> run;
    std::uint64_t after;  // the Stays that were there have smaller numbers
    base::Time since;
  };

  void release_guard(std::uint64_t number) LINKSPAN_EXCLUDES(mutex_);
  void start() LINKSPAN_REQUIRES(mutex_);
  void loop() LINKSPAN_EXCLUDES(mutex_);
  void run_first() LINKSPAN_REQUIRES(mutex_);  // off the lock
  /// How long the first of them has to wait at least.
  Duration to_wait() const LINKSPAN_REQUIRES(mutex_);

  const base::ForkWatch fork_;
  const Duration patience_;
  mutable base::Mutex mutex_;
  base::Condition changed_;
  std::set<std::uint64_t> guards_ LINKSPAN_GUARDED_BY(mutex_);
  std::uint64_t last_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  std::deque<DeferredClose> pending_ LINKSPAN_GUARDED_BY(mutex_);  // the first one may be running
  base::Time next_ LINKSPAN_GUARDED_BY(mutex_){};                  // not before
  bool is_closing_ LINKSPAN_GUARDED_BY(mutex_) = false;            // the first one is running
  unsigned draining_ LINKSPAN_GUARDED_BY(mutex_) = 0;
  bool ending_ LINKSPAN_GUARDED_BY(mutex_) = false;
  std::jthread thread_ LINKSPAN_GUARDED_BY(mutex_);  // from the first closing on
};

}  // namespace linkspan::cuda
