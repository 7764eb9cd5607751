// Handles what arrives over a ConnectionGroup's connections: data, its destination, and the peer's
// other frames.
#include <algorithm>
#include <utility>

#include "transport/tcp/connection_group.hpp"
#include "transport/tcp/data_connection.hpp"

namespace linkspan::transport::tcp {
namespace {

Status corrupt_request(const char* what) { return {Code::corrupt, Scope::peer, what}; }

}  // namespace

Result<FrameDestination> ConnectionGroup::resolve_destination(Head& head) {
  const base::MutexLock lock(mutex_);
  (void)sync();
  FrameDestination destination{.of = {}, .use = {}, .extents = {}, .bytes = head.data};
  if (head.type == FrameType::put) {
    auto batch = served_.find_or_create_put(head);
    if (!batch.ok()) return batch.status();
    on_batch_begun();
    destination.of = *std::move(batch);
    if (const auto& memory = destination.of->use.memory(); memory != nullptr) {
      destination.use = RegionUse(memory);
      destination.device = memory->device;
      for (const Span& span : head.spans)
        destination.extents.push_back({memory->address + span.offset, 0, span.bytes});
    }
  } else {
    const auto found = std::ranges::find(gets_, head.id, &Incoming::id);
    if (found == gets_.end()) return corrupt_request("data that nobody asked for");
    destination.of = *found;
    if (!memory::fits(head.position, head.data, destination.of->requested))
      return corrupt_request("data beyond what was asked for");
    if (destination.of->summed && !head.summed)
      return corrupt_request("data without the sum that was asked for");
    destination.device = destination.of->use.memory()->device;
    std::uint64_t at = head.position, left = head.data;
    auto extent = std::ranges::upper_bound(destination.of->extents, at, {}, &Extent::there);
    for (--extent; left != 0; ++extent) {
      const std::uint64_t skip = at - extent->there, bytes = std::min(left, extent->bytes - skip);
      destination.extents.push_back({extent->here + skip, 0, bytes});
      at += bytes;
      left -= bytes;
    }
    if (head.code != Code::ok && destination.of->status.ok())
      destination.of->status =
          head.code == Code::corrupt
              ? wrong_sum(FrameType::get)
              : Status(head.code, Scope::request, "the peer could not read all of it");
    if (head.code != Code::ok) destination.extents.clear();
  }
  Incoming& batch = *destination.of;
  if (head.last && batch.total) return corrupt_request("two last frames of one batch");
  if (head.last) {
    batch.total = head.position + head.data;
    batch.notification = std::move(head.notification);
    batch.after = head.after;
  }
  batch.announced += head.data;
  if (head.data > ~std::uint64_t{0} - head.position ||
      (batch.total && batch.announced > *batch.total))
    return corrupt_request("more data than its batch has");
  return destination;
}

std::optional<Answer> ConnectionGroup::data_landed(Incoming& batch, std::uint64_t bytes,
                                                   const Status& status) {
  const base::MutexLock lock(mutex_);
  (void)sync();
  batch.arrived += bytes;
  if (batch.status.ok()) batch.status = status;
  if (!batch.total || batch.arrived != *batch.total || std::exchange(batch.landed, true))
    return std::nullopt;
  if (batch.type == FrameType::put) {
    const bool notifies = batch.status.ok() && !batch.notification.empty() && !failure_;
    if (notifies)
      options_.channel->deliver_notification(std::move(batch.notification), batch.after);
    Head head{.type = FrameType::ended,
              .id = batch.id,
              .incarnation = options_.incarnation,
              .code = batch.status.code(),
              .text = batch.status.what()};
    served_.end_put(batch.id);
    return Answer{.head = std::move(head), .waits = notifies};
  }
  if (batch.status.ok() && batch.arrived != batch.requested)
    batch.status = Status(batch.canceled ? Code::canceled : Code::corrupt, Scope::request,
                          "the peer sent less than was asked for");
  batch.use = {};
  batch.result.end(batch.status);
  erase(gets_, batch.id);
  return std::nullopt;
}

void ConnectionGroup::end_stalled(base::Time now) {
  ServedTransfers::StallCheck check;
  {
    const base::MutexLock lock(mutex_);
    check = served_.end_stalled(now);
    revocations_ += check.any_revoked ? 1 : 0;
    if (check.any_revoked) connections_.wake_all();
  }
  if (!check.broken.ok()) fail(check.broken);
}

std::vector<Served> ConnectionGroup::served(base::Time now) const {
  const base::MutexLock lock(mutex_);
  return served_.list(now);
}

// ---- other frames -------------------------------------------------------------------------------

Status ConnectionGroup::on_frame(const Head& head) {
  const base::MutexLock lock(mutex_);
  if (head.type == FrameType::get) return on_get_request(head);
  if (head.type == FrameType::cancel) {
    // A get that was sent completely needs no cancel.
    if (served_.cancel_answer(head.id)) wake_some();
    return {};
  }
  Outgoing* const found = find(puts_, head.id);
  if (found == nullptr) return corrupt_request("what has ended was not begun");
  Outgoing& batch = *found;
  if (!batch.all_assigned) return corrupt_request("a put has ended before it was sent");
  if (batch.status.ok() && head.code != Code::ok)
    batch.status = Status(head.code, Scope::request, "by the peer: " + head.text);
  batch.ended_by_peer = true;
  end_if_finished(head.id);
  return {};
}

Status ConnectionGroup::on_get_request(const Head& head) {
  auto answer = served_.add_answer(head);
  if (!answer.ok()) return answer.status();
  (*answer)->bytes = bytes_of((*answer)->extents);
  choose_frame_bytes(**answer, queue_.size() + 1);
  queue_.push_back(*std::move(answer));
  on_batch_begun();
  wake_some();
  return {};
}

}  // namespace linkspan::transport::tcp
