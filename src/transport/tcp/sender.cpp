#include "transport/tcp/sender.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/no_memory.hpp"
#include "copy/cma.hpp"
#include "memory/page_access.hpp"
#include "memory/validate_allocation.hpp"

namespace linkspan::transport::tcp {
namespace {

constexpr std::size_t kSentParts = 512;                         // of one call
constexpr std::size_t kSenderPollBytes = std::size_t{4} << 20;  // then other connections are polled
constexpr Duration kCompany =
    std::chrono::microseconds(10);  // about the cost of sending a second frame
constexpr std::uint64_t kSmallData = 64u << 10;

}  // namespace

void Sender::answer(std::vector<std::byte> frame, bool waits) {
  const base::MutexLock lock(sending_);
  if (!waits || sealer_) return enqueue(std::move(frame));
  auto& [bytes, frames] = waiting_.frames;
  if (bytes.empty()) waiting_.until = base::Clock::steady().now() + kCompany;
  bytes.insert(bytes.end(), frame.begin(), frame.end());
  ++frames;
}

Result<bool> Sender::poll() {
  const base::MutexLock lock(sending_);
  if (group_.has_failed()) return false;
  bool moved = staging_.poll();
  moved |= staging_.submit(group_);
  auto sent = send_frames();
  // An event follows; until then its thread may sleep.
  if (!writable_ && waiting_.frames.frames != 0) queue_.push(std::exchange(waiting_.frames, {}));
  if (sent.ok()) *sent |= moved;
  return sent;
}

Result<bool> Sender::send_now() {
  if (socket_.is_encrypted()) return false;  // its thread also receives by it
  if (!sending_.try_lock()) return false;    // its thread is sending, and might not poll again
  Result<bool> sent = staging_.empty() && !current_ && !group_.has_failed();
  try {
    if (*sent) sent = send_frames();
    if (sent.ok()) sent = !current_ && queue_.is_idle();
  } catch (const std::exception&) {
    group_.fail(base::no_memory(Scope::peer));  // the frame is incomplete: nothing may follow it
    sent = false;
  }
  sending_.unlock();
  return sent;
}

Result<bool> Sender::send_frames() {
  bool moved = false;
  for (std::size_t left = kSenderPollBytes; writable_ && left != 0;) {
    const auto more = current_ ? Result<bool>(true) : next();
    if (!more.ok()) return more.status();
    if (!*more) break;
    SentFrame& frame = *current_;
    const auto left_parts = frame.iovecs.left();
    writable_ = false;  // before the event that sets it again
    const auto sent = socket_.send(left_parts.first(std::min(left_parts.size(), kSentParts)));
    if (sent.ok() && *sent == 0) break;
    writable_ = true;
    if (sent.status().code() == Code::unreachable && frame.zero_rest()) continue;
    // No event reports that memory is available.
    if (sent.status().code() == Code::no_resource) return true;
    if (!sent.ok()) return sent.status();
    moved = true;
    if (frame.chunk) frame.chunk->of->progress.bytes.fetch_add(*sent, std::memory_order_relaxed);
    left -= std::min(left, *sent);
    if (!frame.iovecs.advance(*sent)) continue;
    finish(frame);
    current_.reset();
  }
  return moved;
}

/// Makes the next frame the current one. Returns false if there is none.
Result<bool> Sender::next() {
  std::vector<std::byte> queued = queue_.pop(sealer_.has_value());
  if (queued.empty() || !sealer_) {
    const bool any_staged = staging_.has_staged();
    // Alternates: staged chunks may always be ready, and unstaged ones also end batches early.
    auto chunk = any_staged && !was_staged_ ? std::nullopt : group_.next_chunk();
    was_staged_ = any_staged && !chunk;
    if (chunk) {
      current_.emplace();
      current_->chunk = *std::move(chunk);
    } else if (any_staged) {
      current_ = staging_.pop_staged();
    }
  }
  if (waiting_.frames.frames != 0 &&
      (current_ || !queued.empty() || base::Clock::steady().now() >= waiting_.until)) {
    // Small data goes before this side's answers, so that the peer's user is notified first.
    const bool trailing = current_ && current_->chunk->bytes <= kSmallData;
    auto& with = trailing ? current_->trailing : queued;
    auto& [bytes, frames] = waiting_.frames;
    with.insert(with.end(), bytes.begin(), bytes.end());
    bytes.clear();
    frames = 0;
  }
  if (!queued.empty()) {
    if (!current_) current_.emplace();
    current_->head = std::move(queued);
  }
  if (!current_) {
    queue_.set_idle_if_empty(staging_.empty());
    return false;
  }
  queue_.set_busy();
  check_memory(*current_);
  current_->lay_out(copy_);
  if (Status status = sealer_ ? current_->seal_with(*sealer_) : Status(); !status.ok())
    return status;
  return true;
}

/// Copies host memory that is not sent from its place. Checks data first whose head promises it: of
/// a peer's get, or with a notification. An error is stored in the frame.
void Sender::check_memory(SentFrame& frame) {
  if (!frame.chunk || frame.chunk->extents.empty() || frame.buffer != nullptr || !frame.status.ok())
    return;
  const Chunk& chunk = *frame.chunk;
  frame.copied = socket_.is_encrypted() || sealer_ || chunk.head.summed;
  if (!frame.copied) {
    const auto is_there = [](const Extent& extent) {
      return memory::pages_are_readable(extent.here, extent.bytes);
    };
    const bool promised = chunk.head.type == FrameType::data || !chunk.head.notification.empty();
    if (promised && !std::ranges::all_of(chunk.extents, is_there))
      frame.status = memory::freed_early();
    return;
  }
  copy_.resize(kMaxChunk);
  pieces_.clear();
  auto to = reinterpret_cast<std::uintptr_t>(copy_.data());
  for (const Extent& extent : chunk.extents) {
    pieces_.push_back({.to = to, .from = extent.here, .bytes = extent.bytes});
    to += extent.bytes;
  }
  frame.status = copy::copy_within(pieces_);
}

void Sender::release_revoked() {
  const base::MutexLock lock(sending_);
  if (!current_ || !current_->chunk || current_->chunk->use.memory() == nullptr ||
      !current_->chunk->of->progress.revoked)
    return;
  if (current_->buffer == nullptr && !sealer_) current_->zero_data();
  current_->chunk->use = {};
}

void Sender::finish(SentFrame& frame) {
  if (frame.chunk) frame.chunk->use = {};
  staging_.release(frame);
  if (frame.chunk) group_.sent(*frame.chunk, frame.status);
}

bool Sender::stop() {
  const base::MutexLock lock(sending_);
  if (current_) staging_.release(*current_);
  current_.reset();
  return staging_.stop();
}

}  // namespace linkspan::transport::tcp
