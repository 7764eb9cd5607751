// Completion of a GpuCopier's orders: the flag that the GPU writes, and the stream where it cannot.
#include <atomic>

#include "copy/gpu_copier.hpp"

namespace linkspan::copy {

/// Writes the flag after all that is in the queue's stream (fact:
/// Streams.AWriteValueIsBehindWhatItsEventIsBehind). No flag write may overtake the one before it.
Status GpuCopier::write_completion_flag(const cuda::DeviceScope& scope, CopyQueue& queue,
                                        std::uint64_t number, std::uint64_t bytes) {
  const bool own = bytes < kMinFlagStreamBytes || bytes >= kMaxFlagStreamBytes;
  if (queue.in_stream == 0 || !queue.flag_stream ||
      (own && queue.last_by_flag_stream <= queue.quiet))
    return queue.stream.write_value(scope, queue.flag_address, number);
  queue.last_by_flag_stream = number;
  auto& [stream, event] = *queue.flag_stream;
  Status status = event.record(scope, queue.stream.get());
  if (status.ok()) status = stream.wait_for(scope, event);
  if (status.ok()) status = stream.write_value(scope, queue.flag_address, number);
  return status;
}

void GpuCopier::poll_completion_flag(CopyQueue& queue) {
  if (queue.quiet == queue.submitted) return;
  retire(queue,
         std::atomic_ref<std::uint64_t>(*queue.completion_flag).load(std::memory_order_acquire));
  if (queue.quiet == queue.submitted) return;
  const base::Time now = clock_.now();
  queue.of(queue.quiet + 1).last_poll = now;
  if (now >= queue.next_query) query_stream(queue);
}

void GpuCopier::retire(CopyQueue& queue, std::uint64_t up_to) {
  const std::uint64_t before = queue.quiet;
  while (queue.quiet < queue.submitted) {
    QueuedOrder& order = queue.of(queue.quiet + 1);
    if (order.entries != 0) {
      if (order.number > up_to) break;
      queue.entries -= order.entries;
      if (order.is_last) --queue.in_stream;
      if (order.args != nullptr) {
        Status page_error = retire_args(*order.args, order.first);
        if (order.status.ok()) order.status = std::move(page_error);
      }
      if (order.chunks != 0) {
        Status relay_error = relay_->end(*order.relay_streams, order.chunks);
        if (order.status.ok()) order.status = std::move(relay_error);
      }
      ++unreported_;
    }
    ++queue.quiet;
  }
  if (queue.quiet != before && queue.quiet != queue.submitted)
    queue.next_query = queue.of(queue.quiet + 1).due + kOverdue;
}

void GpuCopier::query_stream(CopyQueue& queue) {
  queue.next_query = clock_.now() + kQueryInterval;
  const auto scope = device_.enter();
  Status answer = scope.ok() ? queue.stream.query(*scope) : scope.status();
  if (answer.ok() && queue.flag_stream) answer = queue.flag_stream->stream.query(*scope);
  if (answer.ok()) {
    retire(queue, queue.begun);
  } else if (answer.scope() == Scope::process) {
    fail_all(answer);
  }  // pending, or a driver that cannot answer now: the order is not known to be quiet
}

void GpuCopier::fail_all(const Status& cause) {
  context_error_ = cause;
  for (CopyQueue& queue : queues_) {
    for (const JoinedOrders::JoinedPiece& part : queue.waiting.parts)
      if (queue.of(part.number).number == part.number)
        end_unbegun(queue, queue.of(part.number), cause);
    queue.waiting.parts.clear();
    for (std::uint64_t number = queue.quiet + 1; number <= queue.submitted; ++number)
      if (queue.of(number).entries != 0) queue.of(number).status = cause;
    retire(queue, queue.submitted);
  }
}

}  // namespace linkspan::copy
