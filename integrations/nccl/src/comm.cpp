#include "integrations/nccl/src/comm.hpp"

#include <utility>

#include "base/clock.hpp"

namespace linkspan::nccl {
namespace {

constexpr Duration kGrace = std::chrono::seconds(1);  // for the transfer to tell its end itself
constexpr std::size_t kShort = 128u << 10;  // bytes of a receive whose message is often small

Status bad_memory(const char* call) {
  return {Code::invalid_argument, Scope::request,
          std::string(call) + " of bytes that regMr has not been given for this comm"};
}

}  // namespace

// ---- sender -------------------------------------------------------------------------------------

Result<Request*> SendComm::send(const void* data, std::size_t bytes, const Memory* memory) {
  if (!failure_.ok()) return failure_;
  if (Status status = reaches(count_); !status.ok()) return status;
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
    if (begun_++ >= rooms_) ++link_->ahead;
  }
  return {};
}

Result<bool> SendComm::begin(Request& request) {
  const bool small = request.bytes <= kSmallBytes;
  const bool full = request.number >= rooms_ && link_->ahead >= Link::kMaxAhead;
  if (full || request.number >= rooms_ + (small ? kAhead : 0)) {
    if ((full || !small) && small_)
      small_ =
          !link_->send({.kind = FrameKind::want, .comm = *receiver, .number = request.number}).ok();
    return false;
  }
  const Frame frame{.kind = small ? FrameKind::small : FrameKind::landed,
                    .comm = *receiver,
                    .number = request.number,
                    .bytes = request.bytes};
  auto transfer =
      small ? link_->send_small(frame, {request.data, request.bytes}) : write(request, frame);
  const Code code = transfer.status().code();
  if (code == Code::no_resource || code == Code::pending) return false;
  if (!transfer.ok()) return transfer.status();
  small_ = small;
  if (!small) {
    request.transfer = *std::move(transfer);
    request.limit = base::Deadline::in(link_->timeout() + kGrace);
    return true;
  }
  request.done = true;  // the notification has it
  small_under_way_.push_back(*std::move(transfer));
  while (!small_under_way_.empty()) {
    Status ended = small_under_way_.front().status();
    if (ended.code() == Code::pending) break;
    if (!ended.ok()) return ended;
    small_under_way_.pop_front();
  }
  return true;
}

void SendComm::settle(Duration timeout) {
  const auto deadline = base::Deadline::in(timeout);
  for (const Transfer& each : small_under_way_) (void)each.wait(deadline.left());
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
  if (request.done) return true;
  if (failure_.ok() && request.transfer && request.transfer->done()) {
    failure_ = request.transfer->status();
    request.done = failure_.ok();
    if (request.done) return true;
  }
  if (failure_.ok() && request.limit && request.limit->passed())
    failure_ = Status(Code::timed_out, Scope::peer,
                      "the process of the receiver has not answered for as long as "
                      "LINKSPAN_NCCL_MESSAGE_TIMEOUT allows");
  if (failure_.ok()) failure_ = link_->alive();
  if (!failure_.ok()) return failure_;
  if (Status status = reaches(request.number); !status.ok()) return status;
  return false;
}

void SendComm::take(const Frame& frame, std::span<const std::byte>) {
  if (frame.kind == FrameKind::accepted && !receiver) {
    receiver = frame.number;
    return;
  }
  if (frame.kind == FrameKind::closed) {
    closed_at_ = std::min(closed_at_, frame.number);
    return;
  }
  if (frame.kind != FrameKind::room || frame.number != rooms_ || rooms_ >= begun_ + room_.size())
    return fail("the receiver has told a room out of its order");
  if (rooms_ < begun_) --link_->ahead;
  room_[rooms_++ % room_.size()] = frame;
  if (failure_.ok()) failure_ = send_some();
}

void SendComm::say_closed() {
  if (receiver)
    (void)link_->send({.kind = FrameKind::closed, .comm = *receiver, .number = first_open(count_)});
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
  unsaid_.push_back(room);
  if (auto early = early_.extract(request->number)) end(*request, early.mapped());
  say_rooms();
  return request;
}

/// Tells the rooms, unless they may be told later, with others.
void ReceiveComm::say_rooms() {
  const bool may_wait = small_ && unsaid_.size() < kTogether && !unsaid_.empty() &&
                        unsaid_.front().number >= wanted_ && unsaid_.back().bytes <= kShort;
  if (may_wait || !failure_.ok()) return;
  Status status = say_all();
  // A message of a process that is gone may have come before.
  if (status.code() != Code::disconnected) failure_ = std::move(status);
}

/// Says what has room on the connection.
Status ReceiveComm::say_all() {
  while (!unsaid_.empty()) {
    const auto end =
        unsaid_.begin() + static_cast<std::ptrdiff_t>(std::min(unsaid_.size(), kTogether));
    const std::vector<Frame> together(unsaid_.begin(), end);
    Status status = peer_.notify(std::as_bytes(std::span(together)));
    if (status.code() == Code::no_resource) return {};
    if (!status.ok()) return status;
    unsaid_.erase(unsaid_.begin(), end);
  }
  return {};
}

Result<bool> ReceiveComm::test(Request& request) {
  if (request.done) return true;
  say_rooms();
  if (!failure_.ok()) return failure_;
  if (Status status = reaches(request.number); !status.ok()) return status;
  if (peer_.state() == PeerState::up) return false;
  return Status(Code::disconnected, Scope::peer, "the process " + peer_.name() + " is gone");
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
  if (!failure_.ok()) return;  // the memory may be freed
  if (frame.kind == FrameKind::want) {
    wanted_ = std::max(wanted_, frame.number + 1);
    return;
  }
  if (frame.kind == FrameKind::closed) {
    closed_at_ = std::min(closed_at_, frame.number);
    return;
  }
  if (frame.number >= came_) {
    came_ = frame.number + 1;
    small_ = frame.kind == FrameKind::small;
  }
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

void ReceiveComm::say_closed() {
  const Frame frame{.kind = FrameKind::closed, .comm = sender_, .number = first_open(count_)};
  (void)peer_.notify(bytes_of(frame));
}

}  // namespace linkspan::nccl
