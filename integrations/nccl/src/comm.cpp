#include "integrations/nccl/src/comm.hpp"

#include <utility>

namespace linkspan::nccl {
namespace {

Status bad_memory(const char* call) {
  return {Code::invalid_argument, Scope::request,
          std::string(call) + " of bytes that regMr has not been given for this comm"};
}

}  // namespace

// ---- sender -------------------------------------------------------------------------------------

Result<Request*> SendComm::send(const void* data, std::size_t bytes, const Memory* memory) {
  if (!failure_.ok()) return failure_;
  Request* const request = place(count_);
  if (request == nullptr) return nullptr;
  if (bytes > kSmallBytes && (memory == nullptr || !memory->has(data, bytes)))
    return bad_memory("isend");
  *request = {.comm = this,
              .number = count_++,
              // Only read. NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast)
              .data = static_cast<std::byte*>(const_cast<void*>(data)),
              .bytes = bytes,
              .memory = memory};
  if (Status status = send_some(); !status.ok()) return failure_ = std::move(status);
  return request;
}

/// Sends messages in their order, as far as the receiver has told their room.
Status SendComm::send_some() {
  while (begun_ < count_) {
    const auto begun = begin(requests_[begun_ % kRequests]);
    if (!begun.ok()) return begun.status();
    if (!*begun) break;
    ++begun_;
  }
  return {};
}

Result<bool> SendComm::begin(Request& request) {
  const bool small = request.bytes <= kSmallBytes;
  if (request.number >= rooms_ + (small ? kAhead : 0)) return false;
  const Frame frame{.kind = small ? FrameKind::small : FrameKind::landed,
                    .comm = *receiver,
                    .number = request.number,
                    .bytes = request.bytes};
  auto transfer =
      small ? link_->send_small(frame, {request.data, request.bytes}) : write(request, frame);
  const Code code = transfer.status().code();
  if (code == Code::no_resource || code == Code::pending) return false;
  if (!transfer.ok()) return transfer.status();
  request.transfer = *std::move(transfer);
  return true;
}

Result<Transfer> SendComm::write(const Request& request, const Frame& landed) {
  const Frame& room = room_[request.number % room_.size()];
  if (request.bytes > room.bytes)
    return Status(Code::truncated, Scope::request,
                  "a message of " + std::to_string(request.bytes) + " bytes for a receive of " +
                      std::to_string(room.bytes));
  const Memory& memory = *request.memory;
  return link_->write(memory.region, static_cast<std::uint64_t>(request.data - memory.data), room,
                      landed);
}

Result<bool> SendComm::test(Request& request) {
  if (failure_.ok()) failure_ = send_some();
  if (failure_.ok() && request.transfer && request.transfer->done()) {
    failure_ = request.transfer->status();
    request.done = failure_.ok();
  }
  if (request.done) return true;
  if (failure_.ok()) failure_ = link_->alive();
  return failure_.ok() ? Result<bool>(false) : failure_;
}

void SendComm::take(const Frame& frame, std::span<const std::byte>) {
  if (frame.kind == FrameKind::accepted && !receiver) {
    receiver = frame.number;
    return;
  }
  if (frame.kind != FrameKind::room || frame.number != rooms_ || rooms_ >= begun_ + room_.size())
    return fail("the receiver has told a room out of its order");
  room_[rooms_++ % room_.size()] = frame;
  if (failure_.ok()) failure_ = send_some();
}

// ---- receiver -----------------------------------------------------------------------------------

Result<bool> ReceiveComm::accept() {
  if (Status status = say_all(); !status.ok()) return status;
  return unsaid_.empty();
}

Result<Request*> ReceiveComm::receive(void* data, std::size_t bytes, const Memory* memory) {
  if (!failure_.ok()) return failure_;
  Request* const request = place(count_);
  if (request == nullptr) return nullptr;
  if (memory == nullptr ? bytes > kSmallBytes : !memory->has(data, bytes))
    return bad_memory("irecv");
  *request = {.comm = this,
              .number = count_++,
              .data = static_cast<std::byte*>(data),
              .bytes = bytes,
              .memory = memory};
  Frame room{.kind = FrameKind::room, .comm = sender_, .number = request->number, .bytes = bytes};
  if (memory != nullptr) {
    room.region = memory->number;
    room.offset = static_cast<std::uint64_t>(request->data - memory->data);
  }
  say(room);
  if (auto early = early_.extract(request->number)) end(*request, early.mapped());
  if (Status status = say_all(); !status.ok()) return failure_ = std::move(status);
  return request;
}

/// Says what has room on the connection.
Status ReceiveComm::say_all() {
  while (!unsaid_.empty()) {
    Status status = peer_.notify(bytes_of(unsaid_.front()));
    if (status.code() == Code::no_resource) return {};
    if (!status.ok()) return status;
    unsaid_.pop_front();
  }
  return {};
}

Result<bool> ReceiveComm::test(Request& request) {
  if (request.done) return true;
  if (failure_.ok()) failure_ = say_all();
  if (failure_.ok() && peer_.state() != PeerState::up)
    failure_ = {Code::disconnected, Scope::peer, "the process " + peer_.name() + " is gone"};
  return failure_.ok() ? Result<bool>(false) : failure_;
}

/// Copies a small message to its receive.
void ReceiveComm::end(Request& request, std::span<const std::byte> message) {
  if (message.size() > request.bytes)
    return fail("a message of " + std::to_string(message.size()) + " bytes came for a receive of " +
                std::to_string(request.bytes));
  if (!message.empty()) std::memcpy(request.data, message.data(), message.size());
  request.bytes = message.size();
  request.done = true;
}

void ReceiveComm::take(const Frame& frame, std::span<const std::byte> rest) {
  Request& request = requests_[frame.number % kRequests];
  const bool posted =
      frame.number < count_ && request.comm == this && request.number == frame.number;
  if (frame.kind == FrameKind::small && rest.size() == frame.bytes && frame.number >= count_ &&
      frame.number - count_ < kAhead) {
    early_[frame.number].assign(rest.begin(), rest.end());
    return;
  }
  if (!posted || request.done || frame.bytes > request.bytes)
    return fail("a message came for which there is no receive");
  if (frame.kind == FrameKind::small && rest.size() == frame.bytes) return end(request, rest);
  if (frame.kind != FrameKind::landed) return fail("a frame came that is not for a receiver");
  request.bytes = frame.bytes;
  request.done = true;
}

}  // namespace linkspan::nccl
