// linkspan/completion_queue.hpp - reports quiet transfers and ended calls of one or several Engines
// through one file descriptor, for event loops.
//
//   auto queue = CompletionQueue::create().value();
//   Status added = queue.add(transfer, 7);
//   // whenever epoll or asyncio finds queue.fd() readable:
//   for (std::uint64_t cookie : queue.take()) ...  // 7: transfer.status() is final
//
// Threads: any thread.
// Invariants: a handle may be copied; dropping the last one does not affect a transfer or call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "linkspan/future.hpp"
#include "linkspan/status.hpp"
#include "linkspan/transfer.hpp"

namespace linkspan {

namespace engine {
class CompletionQueueState;
}  // namespace engine

class LINKSPAN_API CompletionQueue {
 public:
  CompletionQueue() = default;  ///< Refers to no queue.
  /// Creates a queue with its file descriptor.
  static Result<CompletionQueue> create();

  /// Returns a descriptor that is readable while take() would return a cookie. The queue owns it:
  /// do not read, write or close it. -1: no queue, or the process was forked since create().
  int fd() const noexcept;
  /// Delivers `cookie` once, as soon as the transfer is quiet, with any final status; at once if it
  /// is quiet already. No thread needs to wait for the transfer. invalid_argument: no transfer, or
  /// one that was added to a queue before.
  Status add(const Transfer& transfer, std::uint64_t cookie);
  /// Delivers `cookie` once, as soon as the call is done, with any outcome; at once if it is done
  /// already. invalid_argument: no call, or one that was added to a queue before.
  Status add(const AnyFuture& future, std::uint64_t cookie);
  /// Removes and returns at most `at_most` cookies, in the order in which their transfers became
  /// quiet and their calls done. Never waits: the cookie may arrive shortly after wait() has
  /// returned.
  std::vector<std::uint64_t> take(std::size_t at_most = ~std::size_t{0});

 private:
  explicit CompletionQueue(std::shared_ptr<engine::CompletionQueueState> state);

  std::shared_ptr<engine::CompletionQueueState> state_;  // also of what is not quiet or done
};

}  // namespace linkspan
