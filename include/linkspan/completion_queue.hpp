// linkspan/completion_queue.hpp - transfers that have become quiet, behind one file descriptor: for
// an event loop that waits for many at once, of one Engine or of several.
//
//   auto queue = *CompletionQueue::create();
//   Status added = queue.add(transfer, 7);
//   // whenever epoll or asyncio finds queue.fd() readable:
//   for (std::uint64_t cookie : queue.take()) ...  // 7: transfer.status() is final
//
// Threads: any thread. A handle may be copied; dropping the last one ends no transfer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "linkspan/status.hpp"
#include "linkspan/transfer.hpp"

namespace linkspan {

namespace engine {
class CompletionQueueState;
}  // namespace engine

class LINKSPAN_API CompletionQueue {
 public:
  CompletionQueue() = default;  ///< None.
  static Result<CompletionQueue> create();

  /// Readable while take() would return something. The queue's: not to be read, written or closed.
  /// -1: none, or that of the process from which this one was forked.
  int fd() const noexcept;
  /// Tells `cookie` once, as soon as the transfer is quiet, whatever its end; at once if it is so
  /// already. Nobody has to wait for it. invalid_argument: no transfer, or one that was added to a
  /// queue before.
  Status add(const Transfer& transfer, std::uint64_t cookie);
  /// The cookies that were not taken yet, in the order in which their transfers became quiet.
  /// Never waits: an end that Transfer::wait() has just told may come here a moment later.
  std::vector<std::uint64_t> take(std::size_t at_most = ~std::size_t{0});

 private:
  explicit CompletionQueue(std::shared_ptr<engine::CompletionQueueState> state);

  std::shared_ptr<engine::CompletionQueueState> state_;  // also of transfers that are not quiet
};

}  // namespace linkspan
