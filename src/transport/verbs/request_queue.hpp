// transport/verbs/request_queue.hpp - the requests of one queue pair that are posted and not
// complete.
//
// On the path of a byte: fill() makes a chain of requests from a batch, a request a block, and
// rings the doorbell once for it; poll() takes the completions. Only the last request of a chain
// is signaled, and one after each quarter of the queue: an RC queue pair completes in order.
// Threads: under its peer's mutex.
// Invariants: at most `depth` requests are outstanding, so the device never refuses one for want of
// room. The last request posted is signaled, except after a post that the device took in part,
// until poll().
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "transport/verbs/abi.hpp"
#include "transport/verbs/verbs_batch.hpp"

namespace linkspan::transport::verbs {

struct SendLimits {
  std::uint32_t depth = 4096;               ///< Requests outstanding, at most.
  std::uint32_t chain = 1024;               ///< Requests of one post, at most.
  std::uint32_t runs = 256;                 ///< Chains outstanding, at most.
  std::uint64_t request = 1u << 20;         ///< Bytes of a request, at most.
  std::uint64_t outstanding = 64ull << 20;  ///< Bytes outstanding, beyond which no chain begins.
};

/// Why a queue pair works no longer.
struct SendFailure {
  IbvWcStatus status = kWcSuccess;
  std::uint32_t vendor = 0;
  VerbsBatch* culprit = nullptr;  ///< Its own request caused it. Null: the connection did.
  int post_error = 0;             ///< Not 0: post_send() has failed, with this errno.
};

/// Keys of a batch's memory here and there, for one rail.
struct SendKeys {
  std::uint32_t local = 0, remote = 0;
};

class RequestQueue {
 public:
  explicit RequestQueue(const SendLimits& limits);

  /// Posts requests of the batch while there is room, for about `share` bytes. Returns why the
  /// queue pair cannot go on, if it cannot.
  std::optional<SendFailure> fill(IbvQp& queue_pair, VerbsBatch& batch, const SendKeys& keys,
                                  std::uint64_t share);
  /// Takes the completions that are there. Returns the failure of the first that is an error.
  std::optional<SendFailure> poll(IbvQp& queue_pair);
  /// Gives the batches back what has not arrived. The queue pair must be destroyed, and the peer's
  /// end of it too.
  void reset();

  bool has_room() const noexcept {
    return posted_ - completed_ < limits_.depth && count_ < runs_.size() &&
           bytes_ < limits_.outstanding && !refused_;
  }
  bool empty() const noexcept { return count_ == 0; }
  std::uint64_t completed() const noexcept { return completed_; }

 private:
  /// Requests of one batch that follow each other.
  struct RequestRun {
    VerbsBatch* batch = nullptr;
    BlockRange range;
    std::uint64_t last = 0;  // number of its last request
    std::uint64_t bytes = 0;
  };

  RequestRun& run(std::size_t index) noexcept { return runs_[(first_ + index) % runs_.size()]; }
  void complete(std::uint64_t number) noexcept;
  std::optional<SendFailure> sign(IbvQp& queue_pair);
  SendFailure failure_of(const IbvWc& completion) noexcept;
  bool build(VerbsBatch& batch, const SendKeys& keys, std::uint64_t share, RequestRun& made);
  void count_posted(RequestRun& made, std::uint64_t end);
  std::uint64_t signal_interval() const noexcept {
    return limits_.depth < 4 ? 1 : limits_.depth / 4;
  }

  const SendLimits limits_;
  std::vector<IbvSendWr> requests_;  // of a chain
  std::vector<IbvSge> elements_;
  std::vector<RequestRun> runs_;  // a ring
  std::size_t first_ = 0, count_ = 0;
  // Numbers of requests: the last one posted, signaled and complete.
  std::uint64_t posted_ = 0, signaled_ = 0, completed_ = 0;
  std::uint64_t bytes_ = 0;  // of the runs
  unsigned sign_refusals_ = 0;
  bool refused_ = false;  // the device had no room: wait for a completion
};

}  // namespace linkspan::transport::verbs
