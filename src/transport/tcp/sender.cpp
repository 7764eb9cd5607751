#include "transport/tcp/sender.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace linkspan::transport::tcp {
namespace {

constexpr std::size_t kParts = 512;                  // of one call
constexpr std::size_t kTurn = std::size_t{4} << 20;  // until others have theirs
constexpr std::array<std::byte, 64u << 10> kZeros{};
constexpr std::size_t kMostSaid = 1024;  // an answer for each batch that may be under way, and more

void* pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

bool advance(std::vector<iovec>& parts, std::size_t& part, std::size_t bytes) noexcept {
  while (part < parts.size() && bytes >= parts[part].iov_len) bytes -= parts[part++].iov_len;
  if (part == parts.size()) return true;
  parts[part].iov_base = static_cast<std::byte*>(parts[part].iov_base) + bytes;
  parts[part].iov_len -= bytes;
  return false;
}

void Sender::say(std::vector<std::byte> frame) {
  const base::MutexLock lock(mutex_);
  said_.push_back(std::move(frame));
  idle_ = false;
}

bool Sender::is_full() {
  const base::MutexLock lock(mutex_);
  return said_.size() >= kMostSaid;
}

Result<bool> Sender::turn(bool& writable) {
  bool moved = look_at_gpu();
  moved |= stage();
  for (std::size_t left = kTurn; writable && left != 0 && (current_ || next());) {
    SentFrame& frame = *current_;
    msghdr message{};
    message.msg_iov = frame.parts.data() + frame.part;
    message.msg_iovlen = std::min(frame.parts.size() - frame.part, kParts);
    const ssize_t sent = ::sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == ENOBUFS) return true;  // no event will tell when there is memory
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      writable = false;
      break;
    }
    if (sent < 0)
      return Status(
          Code::disconnected, Scope::peer,
          std::string("a stream takes no more: ") + std::generic_category().message(errno));
    moved = true;
    left -= std::min(left, static_cast<std::size_t>(sent));
    if (!advance(frame.parts, frame.part, static_cast<std::size_t>(sent))) continue;
    finish(frame);
    current_.reset();
  }
  return moved;
}

/// Gives the GPUs as much to do as there are slots.
bool Sender::stage() {
  bool moved = false;
  while (auto chunk = wire_.take(&staging_)) {
    moved = true;
    runs_.clear();
    for (const Piece& piece : chunk->pieces) runs_.push_back({piece.here, piece.bytes});
    auto slot = staging_.take(
        {.device = chunk->of->use.memory()->device, .runs = runs_, .to_gpu = false, .ctas = ctas_});
    SentFrame frame;
    frame.chunk = *std::move(chunk);
    frame.status = slot.status();
    if (slot.ok()) {
      frame.slot = *slot;
      frame.status = staging_.submit(**slot);
      if (!frame.status.ok()) frame.slot = nullptr;
    }
    frame.staged = frame.slot == nullptr;
    staged_.push_back(std::move(frame));
  }
  return moved;
}

bool Sender::look_at_gpu() {
  bool moved = false;
  while (copy::Staging::Slot* const done = staging_.next_done()) {
    SentFrame& frame = *std::ranges::find(staged_, done, &SentFrame::slot);
    frame.staged = true;
    frame.status = done->status();
    moved = true;
  }
  return moved;
}

/// The next frame to be sent becomes the current one.
bool Sender::next() {
  {
    const base::MutexLock lock(mutex_);
    if (!said_.empty()) {
      current_.emplace();
      current_->head = std::move(said_.front());
      said_.pop_front();
    }
  }
  if (!current_) {
    if (const auto ready = std::ranges::find(staged_, true, &SentFrame::staged);
        ready != staged_.end()) {
      current_ = std::move(*ready);
      staged_.erase(ready);
    } else if (auto chunk = wire_.take()) {
      current_.emplace();
      current_->chunk = *std::move(chunk);
    }
  }
  if (current_) {
    lay_out(*current_);
    return true;
  }
  const base::MutexLock lock(mutex_);
  idle_ = said_.empty() && staged_.empty();
  return false;
}

void Sender::lay_out(SentFrame& frame) const {
  if (frame.chunk) {
    Head head = wire_.head_of(*frame.chunk);
    if (!frame.status.ok() && head.op == Op::data) head.code = frame.status.code();
    frame.head = encode(head);
  }
  frame.parts.push_back({frame.head.data(), frame.head.size()});
  if (!frame.chunk) return;
  if (!frame.status.ok()) {
    for (std::uint64_t left = frame.chunk->bytes; left != 0;) {
      const std::uint64_t bytes = std::min<std::uint64_t>(left, kZeros.size());
      frame.parts.push_back({const_cast<std::byte*>(kZeros.data()), bytes});  // only read
      left -= bytes;
    }
    return;
  }
  const auto& pieces = frame.chunk->pieces;
  for (std::size_t i = 0; i < pieces.size(); ++i)
    frame.parts.push_back(
        {frame.slot != nullptr ? frame.slot->at(i) : pointer(pieces[i].here), pieces[i].bytes});
}

void Sender::finish(SentFrame& frame) {
  if (frame.slot != nullptr) staging_.give_back(*frame.slot);
  if (frame.chunk) wire_.sent(*frame.chunk, frame.status);
}

bool Sender::stop() {
  (void)look_at_gpu();
  if (current_ && current_->slot != nullptr) staging_.give_back(*current_->slot);
  current_.reset();
  std::erase_if(staged_, [this](SentFrame& frame) {
    if (frame.staged && frame.slot != nullptr) staging_.give_back(*frame.slot);
    return frame.staged;
  });
  return staged_.empty();
}

}  // namespace linkspan::transport::tcp
