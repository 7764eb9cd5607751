// GpuCopier's small orders of which many are in flight: they go together, as one.
//
// Each submission costs the CPU microseconds, and the word behind each keeps the copy engine from
// the next one: 16 copies of 1 MiB between two H200 move at 125 GB/s with a word behind each, at
// 198 with one behind all, and as one kernel at 304. So while something is in the stream of a lane
// the next orders are only noted down. Who polls has no more of them for now: then they begin, at
// most one submission behind the one that is under way.
#include <algorithm>

#include "copy/gpu_copier.hpp"

namespace linkspan::copy {

bool GpuCopier::may_wait(const Lane& lane, const Order& order, std::uint64_t bytes) {
  const Waiting& others = lane.waiting;
  if (lane.in_stream == 0 && others.parts.empty()) return false;
  if (order.after != nullptr || order.release != nullptr || bytes == 0 || bytes > kJoinedBytes ||
      order.pieces.empty() || order.pieces.size() > kJoinedPieces)
    return false;
  return others.parts.empty() || (others.link == order.link && others.to_gpu == order.to_gpu &&
                                  others.bytes + bytes <= kJoinedBytesOfAll);
}

void GpuCopier::wait(Lane& lane, std::uint64_t number, const Order& order, std::uint64_t bytes) {
  Waiting& others = lane.waiting;
  if (others.parts.empty()) {
    others.bytes = 0;
    others.link = order.link;
    others.to_gpu = order.to_gpu;
    others.ctas = ctas_;
  }
  for (const Piece& piece : order.pieces) others.parts.push_back({number, piece});
  others.bytes += bytes;
  others.ctas = std::min(others.ctas, order.ctas);
  const base::Time now = clock_.now();
  lane.of(number) = {.number = number,
                     .entries = static_cast<unsigned>(order.pieces.size()),
                     .taken = order.taken,
                     .due = std::max(now, lane.last_due),
                     .looked = now};
  lane.submitted = number;
  lane.entries += lane.of(number).entries;
}

/// It is quiet, for nobody ever saw it.
void GpuCopier::end_unbegun(Lane& lane, Running& order, Status status) {
  if (order.entries == 0) return;
  lane.entries -= std::exchange(order.entries, 0);
  order.status = std::move(status);
  ++untold_;
  retire(lane, lane.quiet);  // which goes past it
}

void GpuCopier::begin_waiting_if_due(Lane& lane) {
  if (!lane.waiting.parts.empty() && lane.in_stream < kAtOnce) begin_waiting(lane);
}

bool GpuCopier::begin_waiting(Lane& lane) {
  Waiting& waiting = lane.waiting;
  Running* last = nullptr;
  std::uint64_t bytes = 0;
  joined_.clear();
  for (const auto& [number, piece] : waiting.parts) {
    Running& order = lane.of(number);
    if (order.number != number || order.entries == 0) continue;  // canceled meanwhile
    joined_.push_back(piece);
    bytes += piece.bytes;
    last = &order;
  }
  if (last == nullptr) {
    waiting.parts.clear();
    return true;
  }
  if (lane.entries + kBesideCopies > kStreamEntries) return false;
  Order order{.method = choose_gpu({.pieces = joined_.size(),
                                    .bytes = bytes,
                                    .link = waiting.link,
                                    .kernel_available = has_kernel() && waiting.ctas != 0,
                                    .rates = rates(waiting.link)}),
              .pieces = joined_,
              .link = waiting.link,
              .ctas = waiting.ctas,
              .to_gpu = waiting.to_gpu};
  Slot* slot = order.method == Method::sm_kernel ? idle_slot(lane) : nullptr;
  if (slot == nullptr) order.method = Method::copy_engine;

  const auto scope = device_.enter();
  Queued queued{.status = scope.status()};
  if (scope.ok())
    queued = slot != nullptr ? queue_kernel(*scope, lane, *slot, order, bytes)
                             : queue_copies(*scope, lane, order, nullptr);
  const bool begun = queued.entries != 0;
  const Status written = begun ? write_word(*scope, lane, last->number, bytes) : Status();
  if (queued.status.ok()) queued.status = written;
  const base::Time now = clock_.now();
  if (begun) {
    lane.last_due = std::max(now, lane.last_due) +
                    earliest_time(order.method, order.link, bytes, 1, rates(order.link));
    if (++lane.in_stream == 1) lane.next_query = lane.last_due + kOverdue;
    if (!written.ok()) lane.next_query = now;  // the word will not tell: only the stream can
    ++last->entries;                           // the word
    ++lane.entries;
    if (slot != nullptr) slot->state = Slot::State::busy;
  }
  for (const auto& [number, piece] : waiting.parts) {
    Running& each = lane.of(number);
    if (each.number != number || each.entries == 0) continue;
    if (!begun) {
      end_unbegun(lane, each, queued.status);
      continue;
    }
    each.joined = true;
    each.is_last = &each == last;
    each.slot = each.is_last ? slot : nullptr;
    each.status = queued.status;
    each.due = lane.last_due;
    each.looked = now;
    if (each.taken != nullptr) *each.taken = order.method;
  }
  lane.begun = waiting.parts.back().number;
  waiting.parts.clear();
  if (queued.status.scope() == Scope::process) lose(queued.status);
  return true;
}

}  // namespace linkspan::copy
