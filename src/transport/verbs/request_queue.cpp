#include "transport/verbs/request_queue.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace linkspan::transport::verbs {
namespace {

constexpr unsigned kMaxRefusals = 8;  // of posts, while nothing is outstanding
constexpr unsigned kMaxSignRefusals = 1000;

/// Returns whether the request itself is wrong, so that it would fail again.
bool blames_request(IbvWcStatus status) noexcept {
  switch (status) {
    case kWcLocLenErr:
    case kWcLocProtErr:
    case kWcLocAccessErr:
    case kWcRemInvReqErr:
    case kWcRemAccessErr:
    case kWcRemOpErr:
      return true;
    default:
      return false;
  }
}

}  // namespace

RequestQueue::RequestQueue(const SendLimits& limits)
    : limits_(limits),
      requests_(std::min(limits.chain, limits.depth)),
      elements_(requests_.size()),
      runs_(limits.runs) {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    requests_[i].sg_list = &elements_[i];
    requests_[i].num_sge = 1;
  }
}

/// Makes a chain from the last range of the batch. Returns false if nothing fits.
bool RequestQueue::build(VerbsBatch& batch, const SendKeys& keys, std::uint64_t share,
                         RequestRun& made) {
  const std::uint64_t room = limits_.depth - (posted_ - completed_);
  const std::size_t most = std::min<std::uint64_t>(requests_.size(), room);
  BlockRange& range = batch.unsent.back();
  made = {.batch = &batch, .range = {range.begin, range.begin}, .last = posted_, .bytes = 0};
  const std::uint64_t signal_each = signal_interval();
  std::uint64_t next_signal = posted_ - posted_ % signal_each + signal_each;
  const IbvWrOpcode opcode = batch.op == Op::write ? kWrRdmaWrite : kWrRdmaRead;
  const std::uint64_t there = batch.memory.access->address;
  std::size_t count = 0;
  while (count < most && range.begin != range.end && made.bytes < share &&
         bytes_ + made.bytes < limits_.outstanding) {
    const BlockAddresses each = take_request(batch.blocks, range.begin, limits_.request);
    elements_[count] = {
        .addr = each.here, .length = static_cast<std::uint32_t>(each.bytes), .lkey = keys.local};
    IbvSendWr& request = requests_[count];
    request.wr_id = ++made.last;
    request.opcode = opcode;
    request.send_flags = 0;
    if (made.last == next_signal) {
      request.send_flags = kSendSignaled;
      next_signal += signal_each;
    }
    request.wr.rdma.remote_addr = there + each.there;
    request.wr.rdma.rkey = keys.remote;
    if (count != 0) requests_[count - 1].next = &request;
    made.bytes += each.bytes;
    ++count;
  }
  made.range.end = range.begin;
  if (range.begin == range.end) batch.unsent.pop_back();
  if (count == 0) return false;
  requests_[count - 1].send_flags = kSendSignaled;
  requests_[count - 1].next = nullptr;
  return true;
}

/// Takes note of the chain as far as the device took it, and gives the rest back to the batch.
void RequestQueue::count_posted(RequestRun& made, std::uint64_t end) {
  const std::uint64_t signal_each = signal_interval();
  const std::uint64_t last_signal = end == made.last ? end : end - end % signal_each;
  if (end != made.last) {
    BlockPosition at = made.range.begin;
    made.bytes = 0;
    for (std::uint64_t number = posted_; number < end; ++number)
      made.bytes += take_request(made.batch->blocks, at, limits_.request).bytes;
    made.batch->unsent.push_back({at, made.range.end});
    made.range.end = at;
    made.last = end;
  }
  if (end == posted_) return;
  signaled_ = std::max(signaled_, last_signal > posted_ ? last_signal : 0);
  posted_ = end;
  bytes_ += made.bytes;
  ++made.batch->outstanding;
  run(count_++) = made;
}

std::optional<SendFailure> RequestQueue::fill(IbvQp& queue_pair, VerbsBatch& batch,
                                              const SendKeys& keys, std::uint64_t share) {
  const std::uint64_t bytes_before = bytes_;
  for (unsigned refusals = 0;
       has_room() && !batch.unsent.empty() && bytes_ - bytes_before < share;) {
    batch.unsent.reserve(batch.unsent.size() + 1);  // for what is not taken
    RequestRun made;
    if (!build(batch, keys, share, made)) break;
    IbvSendWr* refused = nullptr;
    const int error = post_send(&queue_pair, requests_.data(), &refused);
    if (error == 0) {
      count_posted(made, made.last);
      continue;
    }
    count_posted(made,
                 refused == nullptr ? posted_ : std::clamp(refused->wr_id - 1, posted_, made.last));
    if (error == ENOMEM && posted_ != completed_) {
      refused_ = true;  // it goes on after the next completion
      break;
    }
    if (error == ENOMEM && ++refusals < kMaxRefusals) continue;
    return SendFailure{.status = kWcGeneralErr, .post_error = error};
  }
  return std::nullopt;
}

void RequestQueue::complete(std::uint64_t number) noexcept {
  completed_ = std::max(number, completed_);
  refused_ = false;
  while (count_ != 0 && run(0).last <= completed_) {
    RequestRun& done = run(0);
    --done.batch->outstanding;
    bytes_ -= done.bytes;
    first_ = (first_ + 1) % runs_.size();
    --count_;
  }
}

SendFailure RequestQueue::failure_of(const IbvWc& completion) noexcept {
  SendFailure out{.status = completion.status, .vendor = completion.vendor_err};
  if (!blames_request(completion.status)) return out;
  for (std::size_t i = 0; i < count_ && out.culprit == nullptr; ++i)
    if (run(i).last >= completion.wr_id) out.culprit = run(i).batch;
  return out;
}

std::optional<SendFailure> RequestQueue::poll(IbvQp& queue_pair) {
  std::array<IbvWc, 16> completions{};
  while (count_ != 0) {
    const int count =
        poll_cq(queue_pair.send_cq, static_cast<int>(completions.size()), completions.data());
    if (count < 0) return SendFailure{.status = kWcFatalErr};
    for (int i = 0; i < count; ++i) {
      const IbvWc& each = completions[static_cast<std::size_t>(i)];
      if (each.wr_id == 0 || each.wr_id > posted_) return SendFailure{.status = kWcFatalErr};
      if (each.status != kWcSuccess) {
        // The requests before it have arrived.
        complete(each.wr_id - 1);
        return failure_of(each);
      }
      complete(each.wr_id);
    }
    if (count < static_cast<int>(completions.size())) break;
  }
  return count_ != 0 && signaled_ <= completed_ ? sign(queue_pair) : std::nullopt;
}

/// Posts a write without bytes that is signaled, after requests that are not: the device has taken
/// a chain in part.
std::optional<SendFailure> RequestQueue::sign(IbvQp& queue_pair) {
  IbvSendWr request{};
  request.wr_id = posted_ + 1;
  request.opcode = kWrRdmaWrite;
  request.send_flags = kSendSignaled;
  request.wr.rdma = requests_.front().wr.rdma;  // which is not looked at
  IbvSendWr* refused = nullptr;
  const int error = post_send(&queue_pair, &request, &refused);
  if (error == 0) {
    signaled_ = ++posted_;
    sign_refusals_ = 0;
  } else if (error != ENOMEM || ++sign_refusals_ >= kMaxSignRefusals) {
    return SendFailure{.status = kWcGeneralErr, .post_error = error};
  }
  return std::nullopt;
}

void RequestQueue::reset() {
  for (; count_ != 0; --count_) {
    RequestRun& lost = run(count_ - 1);
    // While it is outstanding, because it may find no memory.
    lost.batch->unsent.push_back(lost.range);
    --lost.batch->outstanding;
  }
  first_ = 0;
  bytes_ = 0;
  completed_ = signaled_ = posted_;
  refused_ = false;
}

}  // namespace linkspan::transport::verbs
