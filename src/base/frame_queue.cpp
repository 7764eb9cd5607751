#include "base/frame_queue.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace linkspan::base {
namespace {

template <class T>
void put(std::byte* at, T value) noexcept {
  for (std::size_t i = 0; i < sizeof value; ++i) at[i] = static_cast<std::byte>(value >> 8 * i);
}

template <class T>
T get(const std::byte* at) noexcept {
  T value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i)
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(at[i]) << 8 * i));
  return value;
}

}  // namespace

std::array<std::byte, kFrameHeaderBytes> encode(const FrameHeader& header) noexcept {
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  put(bytes.data(), header.length);
  put(bytes.data() + 4, header.version);
  put(bytes.data() + 6, header.op);
  put(bytes.data() + 8, header.id);
  put(bytes.data() + 16, header.incarnation);
  return bytes;
}

FrameHeader decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes) noexcept {
  return {get<std::uint32_t>(bytes.data()), get<std::uint16_t>(bytes.data() + 4),
          get<std::uint16_t>(bytes.data() + 6), get<std::uint64_t>(bytes.data() + 8),
          get<std::uint64_t>(bytes.data() + 16)};
}

Status FrameQueue::check(std::span<const std::byte> payload, std::span<const Fd> fds) const {
  if (payload.size() > kMaxPayload || fds.size() > kMaxFrameFds)
    return {Code::invalid_argument, Scope::request,
            "a frame holds 1 MiB and 64 fds at most, not " + std::to_string(payload.size()) +
                " bytes and " + std::to_string(fds.size()) + " fds"};
  if (!std::ranges::all_of(fds, &Fd::valid))
    return {Code::invalid_argument, Scope::request, "an fd to send is closed"};
  if (bytes_ + size_of(payload.size()) > kMaxQueuedBytes || fds_ + fds.size() > kMaxQueuedFds)
    return Status::no_resource();
  return {};
}

Status FrameQueue::push(const FrameHeader& header, std::span<const std::byte> payload,
                        std::span<Fd> fds) {
  FrameHeader filled = header;
  filled.length = static_cast<std::uint32_t>(payload.size());
  OutgoingFrame made;
  made.bytes.reserve(size_of(payload.size()));
  made.fds.reserve(fds.size());
  frames_.push_back(std::move(made));  // nothing below throws
  OutgoingFrame& frame = frames_.back();
  const auto head = encode(filled);
  frame.bytes.insert(frame.bytes.end(), head.begin(), head.end());
  frame.bytes.insert(frame.bytes.end(), payload.begin(), payload.end());
  if (mac_) {
    mac_->update(frame.bytes);
    const auto seal = mac_->finish();
    if (!seal.ok()) return seal.status();
    frame.bytes.insert(frame.bytes.end(), seal->begin(), seal->end());
  }
  for (Fd& fd : fds) frame.fds.push_back(std::move(fd));
  bytes_ += frame.bytes.size();
  fds_ += fds.size();
  return {};
}

void FrameQueue::advance(std::size_t sent) {
  OutgoingFrame& first = frames_.front();
  first.sent += sent;
  fds_ -= first.fds.size();
  first.fds.clear();
  if (first.sent < first.bytes.size()) return;
  bytes_ -= first.bytes.size();
  frames_.pop_front();
}

void FrameQueue::clear() {
  frames_.clear();
  bytes_ = fds_ = 0;
}

}  // namespace linkspan::base
