// transport/verbs/flush_queue.hpp - makes visible what network cards wrote to memory of GPUs here.
//
// A card's write to a GPU may be acknowledged before kernels see it. Some GPUs order it before what
// follows; for others the driver flushes, which is a call for the Executor.
// On the path of a byte: the last step of what came into a GPU's memory, where that needs it.
// Threads: GpuFlush any thread, immutable; FlushQueue under its peer's mutex.
// Invariants: a flush serves requests that were made before it began.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "cuda/topology.hpp"
#include "transport/verbs/device_call.hpp"

namespace linkspan::transport::verbs {

class GpuFlush {
 public:
  /// `topology` outlives it; null: no GPU.
  explicit GpuFlush(cuda::Topology* topology) : topology_(topology) {}

  /// Returns whether the memory of `device` needs flushes; null: host memory.
  static bool is_needed(const cuda::Device* device) noexcept {
    return device != nullptr && !device->info().orders_network_writes;
  }
  /// Returns whether a GPU in use needs flushes.
  bool is_needed() const;
  /// OFF THE LOCK. Flushes all GPUs in use that need it.
  Status run() const;

 private:
  cuda::Topology* const topology_;
};

class FlushQueue {
 public:
  FlushQueue(base::Executor& executor, const GpuFlush& flush)
      : executor_(executor), flush_(flush) {}

  void request(std::uint64_t id) { waiting_.push_back(id); }
  std::size_t size() const noexcept { return waiting_.size() + served_.size(); }

  /// Starts flushes, and calls `done(id, status)` for the requests that they served.
  template <class Done>
  void advance(const Done& done) {
    if (call_ != nullptr && call_->is_done()) {
      while (!served_.empty()) {
        done(served_.back(), call_->status);
        served_.pop_back();
      }
      call_ = nullptr;
    }
    if (call_ != nullptr || waiting_.empty()) return;
    call_ = DeviceCall::start(executor_, [flush = flush_](DeviceCall&) { return flush.run(); });
    served_.swap(waiting_);
  }

 private:
  base::Executor& executor_;
  const GpuFlush flush_;
  std::vector<std::uint64_t> waiting_, served_;  // by the next flush, and by the one that runs
  std::shared_ptr<DeviceCall> call_;             // shared with the Executor
};

}  // namespace linkspan::transport::verbs
