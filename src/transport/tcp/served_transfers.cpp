#include "transport/tcp/served_transfers.hpp"

#include <algorithm>
#include <utility>

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

Result<std::shared_ptr<Incoming>> ServedTransfers::find_or_create_put(const Head& head) {
  auto found = std::ranges::find(puts_, head.id, &Incoming::id);
  if (found == puts_.end()) {
    if (puts_.size() >= most_) return corrupt_request("more puts than may be in flight");
    auto batch = std::make_shared<Incoming>();
    batch->id = head.id;
    batch->serial = head.serial;
    batch->use = published_.use(head.serial);
    found = puts_.insert(puts_.end(), std::move(batch));
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

Result<std::shared_ptr<Outgoing>> ServedTransfers::add_answer(const Head& head) {
  // A get that is wholly assigned to connections may have ended at the peer.
  const auto unassigned =
      std::ranges::count_if(answers_, [](const auto& answer) { return !answer->all_assigned; });
  if (static_cast<std::size_t>(unassigned) >= most_)
    return corrupt_request("more gets than may be in flight");
  auto batch = std::make_shared<Outgoing>();
  batch->type = FrameType::data;
  batch->id = head.id;
  batch->summed = head.summed;
  batch->use = published_.use(head.serial);
  if (!FrameSum(head).matches()) batch->status = wrong_sum(FrameType::get);
  if (batch->status.ok()) batch->status = check_access(batch->use, head.token, FrameType::get);
  if (batch->status.ok()) batch->status = check_spans(*batch->use.memory(), head.spans);
  if (batch->status.ok())
    for (const Span& span : head.spans)
      batch->extents.push_back({batch->use.memory()->address + span.offset, 0, span.bytes});
  else
    batch->use = {};
  if (find(answers_, head.id) != nullptr) return corrupt_request("two gets of one number");
  return answers_.emplace_back(std::move(batch));
}

bool ServedTransfers::cancel_answer(std::uint64_t id) {
  Outgoing* const answer = find(answers_, id);
  if (answer != nullptr) answer->canceled = true;
  return answer != nullptr;
}

void ServedTransfers::clear() {
  puts_.clear();
  answers_.clear();
}

/// Returns OK while the transfer may go on. `bounded`: max_stall_ applies although the region was
/// not retracted.
Status ServedTransfers::stall_status(PeersProgress& progress, const WireRegion& memory,
                                     bool bounded, base::Time now) const {
  const std::uint64_t bytes = progress.bytes;
  if (progress.since == base::Time{} || bytes != progress.seen) progress.since = now;
  progress.seen = bytes;
  const Duration still = now - progress.since;
  if (bounded && still > max_stall_)
    return {Code::timed_out, Scope::request,
            "no byte of it has come for " +
                std::to_string(std::chrono::ceil<std::chrono::seconds>(max_stall_).count()) +
                " s: the region is not kept for it any longer"};
  if (!memory.retracted) return {};
  if (!progress.retracted_since) progress.retracted_since = now;
  progress.late = still > kMaxStallRetracted || now - *progress.retracted_since > kMaxRetracted;
  if (memory.revoke_immediately || progress.late)
    return {Code::unreachable, Scope::request, "its owner has deregistered the region"};
  return {};
}

ServedTransfers::StallCheck ServedTransfers::end_stalled(base::Time now) {
  StallCheck check;
  const auto revoke = [&](TcpBatch& batch, const Status& why) {
    if (batch.status.ok()) batch.status = why;
    batch.progress.revoked = true;
    batch.use = {};
    check.any_revoked = true;
  };
  for (const auto& put : puts_) {
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
      check.broken = Status(Code::disconnected, Scope::peer,
                            "the peer takes the bytes of a read too slowly: " + why.what());
    }
  }
  return check;
}

std::vector<Served> ServedTransfers::list(base::Time now) const {
  std::vector<Served> all;
  const auto add = [&](const auto& batch, linkspan::Op op) {
    const PeersProgress& of = batch->progress;
    if (batch->use.memory() != nullptr)
      all.push_back({.serial = batch->use.memory()->key.id.serial,
                     .op = op,
                     .bytes = of.bytes,
                     .still = of.since == base::Time{} ? Duration::zero() : now - of.since});
  };
  for (const auto& put : puts_) add(put, linkspan::Op::write);
  for (const auto& answer : answers_) add(answer, linkspan::Op::read);
  return all;
}

}  // namespace linkspan::transport::tcp
