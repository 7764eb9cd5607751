#include "bench/tcp_ways/frames.hpp"

#include <algorithm>
#include <string>

namespace linkspan::bench {

std::vector<Frame> lay_out(std::span<std::byte> memory, unsigned first, unsigned of) {
  const std::uint64_t step = of * kFrame;
  const std::uint64_t begin = first * kFrame;
  std::vector<Frame> frames(begin < memory.size() ? (memory.size() - begin + step - 1) / step : 0);
  std::uint64_t at = begin;
  for (Frame& frame : frames) {
    frame.head = {at, std::min<std::uint64_t>(kFrame, memory.size() - at)};
    frame.parts = {iovec{&frame.head, sizeof frame.head},
                   iovec{memory.data() + at, frame.head.bytes}};
    frame.message.msg_iov = frame.parts.data();
    frame.message.msg_iovlen = frame.parts.size();
    at += step;
  }
  return frames;
}

bool advance(msghdr& message, std::size_t bytes) noexcept {
  while (message.msg_iovlen != 0 && bytes >= message.msg_iov->iov_len) {
    bytes -= message.msg_iov->iov_len;
    ++message.msg_iov;
    --message.msg_iovlen;
  }
  if (message.msg_iovlen == 0) return true;
  message.msg_iov->iov_base = static_cast<std::byte*>(message.msg_iov->iov_base) + bytes;
  message.msg_iov->iov_len -= bytes;
  return false;
}

Incoming::Incoming(std::span<std::byte> memory, std::size_t frames)
    : memory_(memory), heads_(frames), done_(frames == 0) {
  parts_[0] = {&head_, sizeof head_};
  message_.msg_iov = parts_.data();
  message_.msg_iovlen = 1;
}

Status Incoming::got(std::size_t bytes) {
  if (!advance(message_, bytes)) return {};
  done_ = !at_head_;
  if (done_) return {};
  if (head_.at > memory_.size() || head_.bytes > memory_.size() - head_.at)
    return {Code::corrupt, Scope::peer, "a frame for byte " + std::to_string(head_.at)};
  at_head_ = --heads_ != 0;
  parts_ = {iovec{memory_.data() + head_.at, head_.bytes}, iovec{&head_, sizeof head_}};
  message_.msg_iov = parts_.data();
  message_.msg_iovlen = at_head_ ? 2 : 1;
  return {};
}

}  // namespace linkspan::bench
