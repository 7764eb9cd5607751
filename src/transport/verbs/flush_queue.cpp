#include "transport/verbs/flush_queue.hpp"

#include <algorithm>

#include "cuda/dma_buf.hpp"

namespace linkspan::transport::verbs {

bool GpuFlush::is_needed() const {
  return topology_ != nullptr &&
         std::ranges::any_of(topology_->all_active(),
                             [](const cuda::Device* each) { return is_needed(each); });
}

Status GpuFlush::run() const {
  if (topology_ == nullptr) return {};
  Status status;
  for (const cuda::Device* const device : topology_->all_active()) {
    if (!is_needed(device)) continue;
    const auto scope = device->enter();
    const Status flushed = scope.ok() ? cuda::flush_network_writes(*scope) : scope.status();
    if (status.ok()) status = flushed;
  }
  return status;
}

}  // namespace linkspan::transport::verbs
