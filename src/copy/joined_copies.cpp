// GpuCopier's small orders: while many are in flight they are submitted together.
//
// Each submission costs the CPU microseconds, and the flag write after each delays the copy engine:
// 16 copies of 1 MiB between two H200 move at 125 GB/s with a flag write after each, at 198 with
// one after all, and as one kernel at 304. So while a queue's stream is busy, further orders are
// only recorded. They start when their owner polls, which shows that it has no more of them for
// now, at most one submission after the one in flight.
#include <algorithm>

#include "copy/gpu_copier.hpp"

namespace linkspan::copy {

bool GpuCopier::may_wait(const CopyQueue& queue, const Order& order, std::uint64_t bytes) {
  const JoinedOrders& others = queue.waiting;
  if (queue.in_stream == 0 && others.parts.empty()) return false;
  if (order.after != nullptr || order.release != nullptr || bytes == 0 || bytes > kJoinedBytes ||
      order.pieces.empty() || order.pieces.size() > kJoinedPieces)
    return false;
  return others.parts.empty() || (others.link == order.link && others.to_gpu == order.to_gpu &&
                                  others.bytes + bytes <= kJoinedBytesOfAll);
}

void GpuCopier::wait(CopyQueue& queue, std::uint64_t number, const Order& order,
                     std::uint64_t bytes) {
  JoinedOrders& others = queue.waiting;
  if (others.parts.empty()) {
    others.bytes = 0;
    others.link = order.link;
    others.to_gpu = order.to_gpu;
    others.ctas = ctas();
  }
  for (const Piece& piece : order.pieces) others.parts.push_back({number, piece});
  others.bytes += bytes;
  others.ctas = std::min(others.ctas, order.ctas);
  const base::Time now = clock_.now();
  queue.of(number) = {.number = number,
                      .entries = static_cast<unsigned>(order.pieces.size()),
                      .actual_method = order.actual_method,
                      .due = std::max(now, queue.last_due),
                      .last_poll = now};
  queue.submitted = number;
  queue.entries += queue.of(number).entries;
}

/// Ends an order that was never submitted.
void GpuCopier::end_unbegun(CopyQueue& queue, QueuedOrder& order, Status status) {
  if (order.entries == 0) return;
  queue.entries -= std::exchange(order.entries, 0);
  order.status = std::move(status);
  ++unreported_;
  retire(queue, queue.quiet);  // skips this order
}

void GpuCopier::begin_waiting_if_due(CopyQueue& queue) {
  if (!queue.waiting.parts.empty() && queue.in_stream < kAtOnce) begin_waiting(queue);
}

bool GpuCopier::begin_waiting(CopyQueue& queue) {
  JoinedOrders& waiting = queue.waiting;
  QueuedOrder* last = nullptr;
  std::uint64_t bytes = 0;
  joined_.clear();
  for (const auto& [number, piece] : waiting.parts) {
    QueuedOrder& order = queue.of(number);
    if (order.number != number || order.entries == 0) continue;  // canceled meanwhile
    joined_.push_back(piece);
    bytes += piece.bytes;
    last = &order;
  }
  if (last == nullptr) {
    waiting.parts.clear();
    return true;
  }
  if (queue.entries + kExtraEntries > kStreamEntries) return false;
  Order order{.method = choose_gpu({.pieces = joined_.size(),
                                    .bytes = bytes,
                                    .link = waiting.link,
                                    .kernel_available = has_kernel() && waiting.ctas != 0,
                                    .rates = rates(waiting.link)}),
              .pieces = joined_,
              .link = waiting.link,
              .ctas = waiting.ctas,
              .to_gpu = waiting.to_gpu};
  KernelArgs* args = order.method == Method::sm_kernel ? idle_args(queue) : nullptr;
  if (args == nullptr) order.method = Method::copy_engine;

  const auto scope = device_.enter();
  SubmitResult queued{.status = scope.status()};
  if (scope.ok())
    queued = args != nullptr ? queue_kernel(*scope, queue, *args, order, bytes)
                             : queue_copies(*scope, queue, order, nullptr);
  const bool begun = queued.entries != 0;
  const Status written =
      begun ? queue.flag.write(*scope, queue.stream, last->number, bytes, queue.in_stream == 0)
            : Status();
  if (queued.status.ok()) queued.status = written;
  const base::Time now = clock_.now();
  if (begun) {
    queue.last_due = std::max(now, queue.last_due) +
                     earliest_time(order.method, order.link, bytes, 1, rates(order.link));
    if (++queue.in_stream == 1) queue.next_query = queue.last_due + kOverdue;
    if (!written.ok())
      queue.next_query = now;  // the flag was not written, so only the stream shows the end
    ++last->entries;           // the flag write
    ++queue.entries;
    if (args != nullptr) args->state = KernelArgs::ArgsState::busy;
  }
  for (const auto& [number, piece] : waiting.parts) {
    QueuedOrder& each = queue.of(number);
    if (each.number != number || each.entries == 0) continue;
    if (!begun) {
      end_unbegun(queue, each, queued.status);
      continue;
    }
    each.joined = true;
    each.is_last = &each == last;
    each.args = each.is_last ? args : nullptr;
    each.status = queued.status;
    each.due = queue.last_due;
    each.last_poll = now;
    if (each.actual_method != nullptr) *each.actual_method = order.method;
  }
  waiting.parts.clear();
  if (queued.status.scope() == Scope::process) fail_all(queued.status);
  return true;
}

}  // namespace linkspan::copy
