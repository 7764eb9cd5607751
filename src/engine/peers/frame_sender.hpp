// engine/peers/frame_sender.hpp - sends frames and notifications of one peer over its Session.
//
// Off the path of a byte. Frames of messages must arrive in order and may not be lost while the
// socket is full, so they wait here.
// Threads: externally synchronised (the peer's mutex).
// Invariants: frames are sent in the order of the calls.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "control/session.hpp"

namespace linkspan::engine {

class FrameSender {
 public:
  explicit FrameSender(std::shared_ptr<control::Session> session) : session_(std::move(session)) {}

  const std::shared_ptr<control::Session>& session() const noexcept { return session_; }
  std::size_t unsent() const noexcept { return unsent_.size(); }
  std::uint64_t notified() const noexcept { return notified_; }  ///< Notifications sent.

  /// Sends a frame now. no_resource: the socket has no room, or earlier frames wait for some.
  Status send(control::FrameOp op, std::uint64_t id, std::span<const std::byte> payload,
              std::span<base::Fd> fds = {}) {
    return unsent_.empty() ? session_->send(op, id, payload, fds) : Status::no_resource();
  }
  /// Sends a frame, now or once there is room. disconnected: as Session::send().
  Status send_or_queue(control::FrameOp op, std::uint64_t id, std::span<const std::byte> payload) {
    Status sent = send(op, id, payload);
    if (sent.code() != Code::no_resource) return sent;
    unsent_.push_back({op, id, {payload.begin(), payload.end()}});
    return {};
  }
  /// Sends the frames that wait, as long as there is room.
  void flush() {
    while (!unsent_.empty()) {
      const UnsentFrame& first = unsent_.front();
      if (session_->send(first.op, first.id, first.payload).code() == Code::no_resource) return;
      unsent_.pop_front();
    }
  }
  void drop_unsent() { unsent_.clear(); }
  /// Sends a notification. Errors as Session::notify().
  Status notify(std::span<const std::byte> message) {
    Status status = session_->notify(message);
    notified_ += status.ok() ? 1 : 0;
    return status;
  }

 private:
  struct UnsentFrame {
    control::FrameOp op;
    std::uint64_t id;
    std::vector<std::byte> payload;
  };

  const std::shared_ptr<control::Session> session_;  // also control's
  std::deque<UnsentFrame> unsent_;
  std::uint64_t notified_ = 0;
};

}  // namespace linkspan::engine
