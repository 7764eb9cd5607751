// engine/transfers/batch_table.hpp - the batches of one peer that its Endpoints have.
//
// On the path of a byte: a batch is added before Endpoint::post() and leaves with its Completion.
// Threads: externally synchronised (the peer's mutex).
// Invariants: complete() allocates nothing, so no Completion is lost where memory ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/handle_table.hpp"
#include "transport/transport.hpp"

namespace linkspan::engine {

struct TransferState;

struct PostedBatch {
  TransferState* of = nullptr;
  std::size_t transport = 0, pair = 0;
};

class BatchTable final : public transport::CompletionSink {
 public:
  /// Adds a batch of that pair of regions of `transfer` and makes room for its Completion. Returns
  /// the cookie.
  std::uint64_t add(TransferState& transfer, std::size_t transport, std::size_t pair) {
    for (auto* const each : {&completions_, &handled_})
      if (each->capacity() < batches_.size() + 1) each->reserve(2 * (batches_.size() + 1));
    return batches_.insert({&transfer, transport, pair});
  }
  /// Removes a batch that no Endpoint has accepted.
  void remove(std::uint64_t cookie) { batches_.extract(cookie); }

  /// Calls `act(cookie, transport)` for each batch of the transfer.
  template <class Act>
  void for_each_of(const TransferState& transfer, Act act) {
    batches_.for_each([&](std::uint64_t cookie, const PostedBatch& batch) {
      if (batch.of == &transfer) act(cookie, batch.transport);
    });
  }

  void complete(transport::Completion&& completion) override {
    completions_.push_back(std::move(completion));
  }
  /// Calls `act(batch, completion)` for each Completion since the last call, in their order.
  template <class Act>
  void handle(Act act) {
    handled_.clear();
    handled_.swap(completions_);  // both keep their capacity
    for (transport::Completion& completion : handled_)
      if (const auto batch = batches_.extract(completion.cookie)) act(*batch, completion);
  }

 private:
  base::HandleTable<PostedBatch> batches_;  // by cookie
  std::vector<transport::Completion> completions_, handled_;
};

}  // namespace linkspan::engine
