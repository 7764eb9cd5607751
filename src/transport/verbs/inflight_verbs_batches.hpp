// transport/verbs/inflight_verbs_batches.hpp - the batches of one peer that are posted and not
// complete.
//
// On the path of a byte: post() adds one, progress() takes those that are over.
// Threads: under its peer's mutex.
// Invariants: the objects of batches that are over are used again, with the memory of their lists,
// so that a batch allocates nothing once there were larger ones.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "transport/verbs/verbs_batch.hpp"

namespace linkspan::transport::verbs {

class InflightVerbsBatches {
 public:
  /// Returns an empty batch that is not in flight.
  std::unique_ptr<VerbsBatch> take() {
    all_.reserve(all_.size() + 1);
    free_.reserve(all_.size() + 1);
    if (free_.empty()) return std::make_unique<VerbsBatch>();
    auto out = std::move(free_.back());
    free_.pop_back();
    return out;
  }
  /// Adds what take() returned.
  void add(std::unique_ptr<VerbsBatch> batch) noexcept { all_.push_back(std::move(batch)); }
  /// Empties a batch that is in no RequestQueue.
  void release(std::unique_ptr<VerbsBatch> batch) noexcept {
    batch->memory.release();
    batch->blocks.clear();
    batch->unsent.clear();
    batch->canceled_at.reset();
    batch->end = Status();
    batch->flush = VerbsBatch::Flush::undecided;
    if (free_.size() < free_.capacity()) free_.push_back(std::move(batch));
  }
  /// For each that is over, in order: calls `completion`, which may find no memory, then `end` with
  /// the batch, which is not in flight any more, and the result.
  template <class CompletionOf, class End>
  void take_over(const CompletionOf& completion, const End& end) {
    for (std::size_t i = 0; i < all_.size();) {
      if (!all_[i]->over()) {
        ++i;
        continue;
      }
      auto ended = completion(*all_[i]);
      auto batch = std::move(all_[i]);
      all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(i));
      end(std::move(batch), std::move(ended));
    }
  }

  std::size_t size() const noexcept { return all_.size(); }
  auto begin() const noexcept { return all_.begin(); }
  auto end() const noexcept { return all_.end(); }

 private:
  std::vector<std::unique_ptr<VerbsBatch>> all_, free_;  // all_: in the order of post()
};

}  // namespace linkspan::transport::verbs
