#include "transport/tcp/sender.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

#include "base/no_memory.hpp"
#include "copy/cma.hpp"
#include "memory/page_access.hpp"
#include "memory/validate_allocation.hpp"
#include "transport/tcp/iovecs.hpp"

namespace linkspan::transport::tcp {
namespace {

constexpr std::size_t kSentParts = 512;                         // of one call
constexpr std::size_t kSenderPollBytes = std::size_t{4} << 20;  // then other connections are polled
constexpr std::array<std::byte, 64u << 10> kZeros{};
constexpr Duration kCompany =
    std::chrono::microseconds(10);  // about the cost of sending a second frame
constexpr std::uint64_t kSmallData = 64u << 10;
constexpr std::size_t kMaxQueuedFrames = 1024;  // more than one answer for each batch in flight

void* source_pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

void Sender::enqueue(std::vector<std::byte> bytes, std::size_t frames) {
  const base::MutexLock lock(mutex_);
  queued_.push_back({std::move(bytes), frames});
  queued_frames_ += frames;
  idle_ = false;
}

void Sender::answer(std::vector<std::byte> frame, bool waits) {
  const base::MutexLock lock(sending_);
  if (!waits || sealer_) return enqueue(std::move(frame));
  if (waiting_.empty()) waits_until_ = base::Clock::steady().now() + kCompany;
  waiting_.insert(waiting_.end(), frame.begin(), frame.end());
  ++waiting_frames_;
}

bool Sender::is_full() {
  if (idle_) return false;
  const base::MutexLock lock(mutex_);
  return queued_frames_ >= kMaxQueuedFrames;
}

Result<bool> Sender::poll() {
  const base::MutexLock lock(sending_);
  if (group_.has_failed()) return false;
  bool moved = poll_gpu();
  moved |= stage();
  auto sent = send_frames();
  // An event follows; until then its thread may sleep.
  if (!writable_ && !waiting_.empty())
    enqueue(std::exchange(waiting_, {}), std::exchange(waiting_frames_, 0));
  if (sent.ok()) *sent |= moved;
  return sent;
}

Result<bool> Sender::send_now() {
  if (tls_ != nullptr) return false;       // its thread also receives by it
  if (!sending_.try_lock()) return false;  // its thread is sending, and might not poll again
  Result<bool> sent = staged_.empty() && !current_ && !group_.has_failed();
  try {
    if (*sent) sent = send_frames();
    if (sent.ok()) sent = !current_ && idle_;
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
    const auto parts = std::span(frame.parts).subspan(frame.part);
    writable_ = false;  // before the event that sets it again
    const auto sent = send(parts.first(std::min(parts.size(), kSentParts)));
    if (sent.ok() && *sent == 0) break;
    writable_ = true;
    if (sent.status().code() == Code::unreachable && zero_rest(frame)) continue;
    // No event reports that memory is available.
    if (sent.status().code() == Code::no_resource) return true;
    if (!sent.ok()) return sent.status();
    moved = true;
    if (frame.chunk) frame.chunk->of->progress.bytes.fetch_add(*sent, std::memory_order_relaxed);
    left -= std::min(left, *sent);
    if (!advance(frame.parts, frame.part, *sent)) continue;
    finish(frame);
    current_.reset();
  }
  return moved;
}

/// Returns the bytes sent; 0 if the socket is full. no_resource: the kernel lacks memory.
/// unreachable: user memory cannot be read.
Result<std::size_t> Sender::send(std::span<iovec> parts) {
  if (tls_ != nullptr) return tls_->send(parts);
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  ssize_t sent = -1;
  do sent = ::sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (sent < 0 && errno == EINTR);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (errno == ENOBUFS) return Status::no_resource();
  if (errno == EFAULT) return memory::freed_early();
  if (errno == EAGAIN || errno == EWOULDBLOCK) return std::size_t{0};
  return Status(
      Code::disconnected, Scope::peer,
      std::string("a data connection takes no more: ") + std::generic_category().message(errno));
}

/// Submits GPU copies while staging buffers are free.
bool Sender::stage() {
  bool moved = false;
  while (auto chunk = group_.next_chunk(&staging_)) {
    moved = true;
    runs_.clear();
    for (const Extent& extent : chunk->extents) runs_.push_back({extent.here, extent.bytes});
    auto buffer = staging_.acquire(
        {.device = chunk->of->use.memory()->device, .runs = runs_, .to_gpu = false, .ctas = ctas_});
    SentFrame frame;
    frame.chunk = *std::move(chunk);
    frame.status = buffer.status();
    if (buffer.ok()) {
      frame.buffer = *buffer;
      frame.status = staging_.submit(**buffer);
      if (!frame.status.ok()) frame.buffer = nullptr;
    }
    frame.staged = frame.buffer == nullptr;
    if (frame.staged) frame.chunk->use = {};  // zeros are sent
    staged_.push_back(std::move(frame));
  }
  return moved;
}

bool Sender::poll_gpu() {
  bool moved = false;
  while (copy::StagingBuffer* const done = staging_.next_done()) {
    SentFrame& frame = *std::ranges::find(staged_, done, &SentFrame::buffer);
    frame.staged = true;
    frame.status = done->status();
    frame.chunk->use = {};  // its bytes are in the staging buffer
    moved = true;
  }
  return moved;
}

/// Makes the next frame the current one. Returns false if there is none.
Result<bool> Sender::next() {
  std::vector<std::byte> queued = pop_queued();
  if (queued.empty() || !sealer_) {
    const auto ready = std::ranges::find(staged_, true, &SentFrame::staged);
    const bool any_staged = ready != staged_.end();
    // Alternates: staged chunks may always be ready, and unstaged ones also end batches early.
    auto chunk = any_staged && !was_staged_ ? std::nullopt : group_.next_chunk();
    was_staged_ = any_staged && !chunk;
    if (chunk) {
      current_.emplace();
      current_->chunk = *std::move(chunk);
    } else if (any_staged) {
      current_ = std::move(*ready);
      staged_.erase(ready);
    }
  }
  if (!waiting_.empty() &&
      (current_ || !queued.empty() || base::Clock::steady().now() >= waits_until_)) {
    // Small data goes before this side's answers, so that the peer's user is notified first.
    const bool trailing = current_ && current_->chunk->bytes <= kSmallData;
    auto& with = trailing ? current_->trailing : queued;
    with.insert(with.end(), waiting_.begin(), waiting_.end());
    waiting_.clear();
    waiting_frames_ = 0;
  }
  if (!queued.empty()) {
    if (!current_) current_.emplace();
    current_->head = std::move(queued);
  }
  if (current_) {
    idle_ = false;
    check_memory(*current_);
    lay_out(*current_);
    if (Status status = sealer_ ? seal(*current_) : Status(); !status.ok()) return status;
    return true;
  }
  const base::MutexLock lock(mutex_);
  idle_ = queued_.empty() && staged_.empty();
  return false;
}

/// Returns whole frames, as many as one call sends; one if frames are sealed.
std::vector<std::byte> Sender::pop_queued() {
  const base::MutexLock lock(mutex_);
  std::vector<std::byte> frames;
  while (!queued_.empty() && (frames.empty() || (!sealer_ && frames.size() < kMaxHead))) {
    const QueuedFrames& first = queued_.front();
    frames.insert(frames.end(), first.bytes.begin(), first.bytes.end());
    queued_frames_ -= first.frames;
    queued_.pop_front();
  }
  return frames;
}

/// Copies host memory that is not sent from its place. Checks data of a peer's get first, because
/// its head promises it. An error is stored in the frame.
void Sender::check_memory(SentFrame& frame) {
  if (!frame.chunk || frame.chunk->extents.empty() || frame.buffer != nullptr || !frame.status.ok())
    return;
  const Chunk& chunk = *frame.chunk;
  frame.copied = tls_ != nullptr || sealer_ || chunk.head.summed;
  if (!frame.copied) {
    const auto is_there = [](const Extent& extent) {
      return memory::pages_are_readable(extent.here, extent.bytes);
    };
    if (chunk.head.type == FrameType::data && !std::ranges::all_of(chunk.extents, is_there))
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

void Sender::lay_out(SentFrame& frame) {
  const std::size_t queued = frame.head.size();
  if (frame.chunk) {
    Head& head = frame.chunk->head;
    if (!frame.status.ok() && head.type == FrameType::data) head.code = frame.status.code();
    if (!frame.status.ok()) head.notification.clear();
    const auto bytes = encode(head);
    frame.head.insert(frame.head.end(), bytes.begin(), bytes.end());
  }
  frame.parts.push_back({frame.head.data(), frame.head.size()});
  if (frame.chunk) lay_out_data(frame);
  frame.data_end = frame.parts.size();
  for (std::size_t i = 1; frame.chunk && frame.chunk->head.summed && i < frame.parts.size(); ++i)
    add_to_sum(std::span(frame.head).subspan(queued),
               {static_cast<const std::byte*>(frame.parts[i].iov_base), frame.parts[i].iov_len});
  if (!frame.trailing.empty())
    frame.parts.push_back({frame.trailing.data(), frame.trailing.size()});
}

void Sender::lay_out_data(SentFrame& frame) {
  if (!frame.status.ok()) return lay_out_zeros(frame, frame.chunk->bytes);
  if (frame.copied) {
    frame.parts.push_back({copy_.data(), frame.chunk->bytes});
    return;
  }
  const auto& extents = frame.chunk->extents;
  for (std::size_t i = 0; i < extents.size(); ++i)
    append(frame.parts, 1,
           frame.buffer != nullptr ? frame.buffer->at(i) : source_pointer(extents[i].here),
           extents[i].bytes);
}

void Sender::lay_out_zeros(SentFrame& frame, std::uint64_t bytes) {
  for (std::uint64_t some = 0; bytes != 0; bytes -= some) {
    some = std::min<std::uint64_t>(bytes, kZeros.size());
    frame.parts.push_back({const_cast<std::byte*>(kZeros.data()), some});  // only read
  }
}

/// Fails a put and sends zeros for the rest of its data. Returns false if the memory is ours, or
/// for data, whose head has reported success.
bool Sender::zero_rest(SentFrame& frame) {
  if (!frame.chunk || frame.chunk->head.type != FrameType::put || frame.buffer != nullptr ||
      frame.copied || !frame.status.ok())
    return false;
  zero_data(frame);
  frame.status = memory::freed_early();
  return true;
}

/// Replaces the rest of the frame's data by zeros, but neither its first part nor what follows the
/// data.
void Sender::zero_data(SentFrame& frame) {
  const auto at = [&frame](std::size_t part) {
    return frame.parts.begin() + static_cast<std::ptrdiff_t>(part);
  };
  const std::size_t first = std::max<std::size_t>(frame.part, 1);
  if (first >= frame.data_end) return;
  std::uint64_t left = 0;
  for (std::size_t i = first; i < frame.data_end; ++i) left += frame.parts[i].iov_len;
  const std::vector<iovec> after(at(frame.data_end), frame.parts.end());
  frame.parts.erase(at(first), frame.parts.end());
  lay_out_zeros(frame, left);
  frame.data_end = frame.parts.size();
  frame.parts.insert(frame.parts.end(), after.begin(), after.end());
}

Status Sender::seal(SentFrame& frame) {
  for (const iovec& part : frame.parts)
    sealer_->update({static_cast<const std::byte*>(part.iov_base), part.iov_len});
  const auto made = sealer_->finish();
  if (!made.ok()) return made.status();
  frame.seal = *made;
  frame.parts.push_back({frame.seal.data(), frame.seal.size()});
  return {};
}

void Sender::release_revoked() {
  const base::MutexLock lock(sending_);
  if (!current_ || !current_->chunk || current_->chunk->use.memory() == nullptr ||
      !current_->chunk->of->progress.revoked)
    return;
  if (current_->buffer == nullptr && !sealer_) zero_data(*current_);
  current_->chunk->use = {};
}

void Sender::finish(SentFrame& frame) {
  if (frame.chunk) frame.chunk->use = {};
  if (frame.buffer != nullptr) staging_.release(*frame.buffer);
  if (frame.chunk) group_.sent(*frame.chunk, frame.status);
}

bool Sender::stop() {
  const base::MutexLock lock(sending_);
  (void)poll_gpu();
  if (current_ && current_->buffer != nullptr) staging_.release(*current_->buffer);
  current_.reset();
  for (auto frame = staged_.begin(); frame != staged_.end();) {
    if (frame->staged && frame->buffer != nullptr) staging_.release(*frame->buffer);
    frame = frame->staged ? staged_.erase(frame) : std::next(frame);
  }
  return staged_.empty();
}

}  // namespace linkspan::transport::tcp
