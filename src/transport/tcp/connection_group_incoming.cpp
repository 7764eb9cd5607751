// Handles what arrives over a ConnectionGroup's connections: data, its destination, and the peer's
// other frames.
#include <algorithm>
#include <utility>

#include "transport/tcp/connection_group.hpp"
#include "transport/tcp/data_connection.hpp"

namespace linkspan::transport::tcp {
namespace {

Status corrupt_request(const char* what) { return {Code::corrupt, Scope::peer, what}; }

/// Checks that a peer with this token may access the region. On an error the use is empty, or must
/// be dropped.
Status check_access(const RegionUse& use, const Token& token, FrameType type) {
  if (use.memory() == nullptr || !equal_constant_time(use.memory()->key.token, token))
    return {Code::unreachable, Scope::request, "the region is not registered here"};
  const Permissions may = use.memory()->key.peers;
  if (!(type == FrameType::put ? may.write : may.read))
    return {Code::permission_denied, Scope::request, "not permitted on this region"};
  return {};
}

Status check_spans(const WireRegion& memory, const std::vector<Span>& spans) {
  for (const Span& span : spans)
    if (!memory::fits(span.offset, span.bytes, memory.key.bytes))
      return {Code::invalid_argument, Scope::request, "a block leaves the region"};
  return {};
}

}  // namespace

Status wrong_sum(FrameType type) {
  const char* const what =
      type == FrameType::put
          ? "a write came by TCP with another CRC32C than it was sent with: what is at "
            "its destination is not to be used"
      : type == FrameType::data
          ? "a read came by TCP with another CRC32C than it was sent with: what is at "
            "its destination is not to be used"
          : "the request of a read came by TCP with another CRC32C than it was sent "
            "with: nothing was read";
  return {Code::corrupt, Scope::request, what};
}

Result<FrameDestination> ConnectionGroup::resolve_destination(Head& head) {
  const base::MutexLock lock(mutex_);
  FrameDestination destination{.of = {}, .use = {}, .extents = {}, .bytes = head.data};
  if (head.type == FrameType::put) {
    auto batch = find_or_create_put(head);
    if (!batch.ok()) return batch.status();
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

/// Returns the put that a frame belongs to; creates it at its first frame.
Result<std::shared_ptr<Incoming>> ConnectionGroup::find_or_create_put(const Head& head) {
  auto found = std::ranges::find(peer_puts_, head.id, &Incoming::id);
  if (found == peer_puts_.end()) {
    if (peer_puts_.size() >= options_.inflight)
      return corrupt_request("more puts than may be in flight");
    auto batch = std::make_shared<Incoming>();
    batch->id = head.id;
    batch->serial = head.serial;
    batch->use = options_.published->use(head.serial);
    found = peer_puts_.insert(peer_puts_.end(), std::move(batch));
    on_batch_begun();
  }
  Incoming& batch = **found;
  if (batch.serial != head.serial) return corrupt_request("a put to two regions");
  if (batch.refused) return *found;
  Status status = check_access(batch.use, head.token, FrameType::put);
  if (status.ok()) status = check_spans(*batch.use.memory(), head.spans);
  if (status.ok()) return *found;
  if (batch.announced != 0) return corrupt_request("a put whose later frames are not permitted");
  batch.refused = true;
  batch.status = status;
  batch.use = {};
  return *found;
}

std::optional<Answer> ConnectionGroup::data_landed(Incoming& batch, std::uint64_t bytes,
                                                   const Status& status) {
  const base::MutexLock lock(mutex_);
  batch.arrived += bytes;
  if (batch.status.ok()) batch.status = status;
  if (!batch.total || batch.arrived != *batch.total) return std::nullopt;
  if (batch.type == FrameType::put) {
    const bool notifies = batch.status.ok() && !batch.notification.empty() && !failure_;
    if (notifies)
      options_.channel->deliver_notification(std::move(batch.notification), batch.after);
    Head head{.type = FrameType::ended,
              .id = batch.id,
              .incarnation = options_.incarnation,
              .code = batch.status.code(),
              .text = batch.status.what()};
    erase(peer_puts_, batch.id);
    return Answer{.head = std::move(head), .waits = notifies};
  }
  if (batch.status.ok() && batch.arrived != batch.requested)
    batch.status = Status(batch.canceled ? Code::canceled : Code::corrupt, Scope::request,
                          "the peer sent less than was asked for");
  batch.use = {};
  end(batch.result, batch.status);
  erase(gets_, batch.id);
  return std::nullopt;
}

// ---- stalled transfers --------------------------------------------------------------------------

/// Returns OK while the transfer may go on. `bounded`: kMaxStall applies although the region was
/// not retracted.
Status ConnectionGroup::stall_status(PeersProgress& progress, const WireRegion& memory,
                                     bool bounded, base::Time now) {
  const std::uint64_t bytes = progress.bytes;
  if (progress.since == base::Time{} || bytes != progress.seen) progress.since = now;
  progress.seen = bytes;
  const Duration still = now - progress.since;
  if (bounded && still > kMaxStall)
    return {Code::timed_out, Scope::request,
            "no byte of it has come for 60 s: the region is not kept for it any longer"};
  if (!memory.retracted) return {};
  if (!progress.retracted_since) progress.retracted_since = now;
  progress.late = still > kMaxStallRetracted || now - *progress.retracted_since > kMaxRetracted;
  if (memory.revoke_immediately || progress.late)
    return {Code::unreachable, Scope::request, "its owner has deregistered the region"};
  return {};
}

void ConnectionGroup::end_stalled(base::Time now) {
  Status broken;
  {
    const base::MutexLock lock(mutex_);
    bool any = false;
    const auto revoke = [&](auto& batch, const Status& why) {
      if (batch.status.ok()) batch.status = why;
      batch.progress.revoked = true;
      batch.use = {};
      any = true;
    };
    for (const auto& put : peer_puts_) {
      const auto& memory = put->use.memory();
      const Status why = memory ? stall_status(put->progress, *memory, true, now) : Status();
      if (why.ok()) continue;
      put->refused = true;  // later frames are discarded
      revoke(*put, why);
    }
    // A peer's read blocks nothing until the region is retracted.
    for (const auto& answer : answers_) {
      const auto& memory = answer->use.memory();
      const Status why = memory ? stall_status(answer->progress, *memory, false, now) : Status();
      if (why.ok()) continue;
      if (!answer->all_assigned) {
        answer->canceled = true;  // the last frame has no data and carries the error
        revoke(*answer, why);
      } else if (answer->progress.late) {
        // The last frame is being sent, so it cannot carry the error.
        broken = Status(Code::disconnected, Scope::peer,
                        "the peer takes the bytes of a read too slowly: " + why.what());
      }
    }
    revocations_ += any ? 1 : 0;
    for (std::size_t i = 0; any && i < connections_.size(); ++i) connections_[i]->wake();
  }
  if (!broken.ok()) fail(broken);
}

std::vector<Served> ConnectionGroup::served(base::Time now) const {
  const base::MutexLock lock(mutex_);
  std::vector<Served> all;
  const auto add = [&](const auto& batch, linkspan::Op op) {
    const PeersProgress& of = batch->progress;
    if (batch->use.memory() != nullptr)
      all.push_back({.serial = batch->use.memory()->key.id.serial,
                     .op = op,
                     .bytes = of.bytes,
                     .still = of.since == base::Time{} ? Duration::zero() : now - of.since});
  };
  for (const auto& put : peer_puts_) add(put, linkspan::Op::write);
  for (const auto& answer : answers_) add(answer, linkspan::Op::read);
  return all;
}

// ---- other frames -------------------------------------------------------------------------------

Status ConnectionGroup::on_frame(const Head& head) {
  const base::MutexLock lock(mutex_);
  if (head.type == FrameType::get) return on_get_request(head);
  if (head.type == FrameType::cancel) {
    // A get that was sent completely needs no cancel.
    if (Outgoing* const answer = find(answers_, head.id)) {
      answer->canceled = true;
      wake_some();
    }
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
  // A get that is wholly assigned to connections may have ended at the peer.
  const auto unassigned =
      std::ranges::count_if(answers_, [](const auto& answer) { return !answer->all_assigned; });
  if (static_cast<std::size_t>(unassigned) >= options_.inflight)
    return corrupt_request("more gets than may be in flight");
  auto batch = std::make_shared<Outgoing>();
  batch->type = FrameType::data;
  batch->id = head.id;
  batch->summed = head.summed;
  batch->use = options_.published->use(head.serial);
  if (head.sum != head.sum_of_head) batch->status = wrong_sum(FrameType::get);
  if (batch->status.ok()) batch->status = check_access(batch->use, head.token, FrameType::get);
  if (batch->status.ok()) batch->status = check_spans(*batch->use.memory(), head.spans);
  if (batch->status.ok())
    for (const Span& span : head.spans)
      batch->extents.push_back({batch->use.memory()->address + span.offset, 0, span.bytes});
  else
    batch->use = {};
  if (find(answers_, head.id) != nullptr) return corrupt_request("two gets of one number");
  answers_.push_back(batch);
  queue_.push_back(std::move(batch));
  on_batch_begun();
  wake_some();
  return {};
}

}  // namespace linkspan::transport::tcp
