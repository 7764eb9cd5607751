// engine/completion_queue.hpp - what a CompletionQueue is a handle of: cookies and an eventfd.
//
// On the path of a byte: behind its end, when TransferScheduler::settle() has made the transfer
// quiet.
// Threads: any thread. Its lock is a leaf, taken under the schedulers' locks of several Engines.
// Invariants: the eventfd is readable exactly while there is a cookie; both change under the lock,
// so no end is missed between them, and one system call tells of all that come before a pop().
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/fd.hpp"
#include "base/fork.hpp"
#include "base/mutex.hpp"
#include "linkspan/status.hpp"

namespace linkspan::engine {

class CompletionQueueState {
 public:
  static Result<std::shared_ptr<CompletionQueueState>> create();

  int fd() const noexcept { return eventfd_.get(); }
  /// As EngineImpl::forked(): its descriptor is the parent's too, who would miss what is read here.
  bool forked() const noexcept { return fork_.forked(); }
  void push(std::uint64_t cookie) LINKSPAN_EXCLUDES(mutex_);
  std::vector<std::uint64_t> pop(std::size_t at_most) LINKSPAN_EXCLUDES(mutex_);

 private:
  explicit CompletionQueueState(base::Fd eventfd) : eventfd_(std::move(eventfd)) {}

  const base::ForkWatch fork_;
  const base::Fd eventfd_;
  base::Mutex mutex_;
  std::deque<std::uint64_t> cookies_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::engine
