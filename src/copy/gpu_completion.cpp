// Completion of a GpuCopier's orders: the flag that the GPU writes, and the stream where it cannot.
#include "copy/gpu_copier.hpp"

namespace linkspan::copy {

void GpuCopier::poll_completion_flag(CopyQueue& queue) {
  if (queue.quiet == queue.submitted) return;
  retire(queue, queue.flag.value());
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
        Status relay_error = (*relay_)->end(*order.relay_streams, order.chunks);
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
  if (answer.ok()) answer = queue.flag.query(*scope);
  if (answer.ok()) {
    retire(queue, queue.begun());
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
