// transport/nccl_net/outbox.hpp - messages to the peer that wait for room in the Channel.
//
// Threads: under its peer's mutex.
// Invariants: messages are sent in order.
#pragma once

#include <cstddef>
#include <deque>
#include <exception>
#include <vector>

#include "transport/channel.hpp"
#include "transport/nccl_net/message_type.hpp"

namespace linkspan::transport::nccl_net {

class Outbox {
 public:
  explicit Outbox(Channel& channel) : channel_(channel) {}

  /// Queues a message. The caller flushes.
  void push(MessageType type, const flatbuffers::FlatBufferBuilder& message) {
    if (!closed_) messages_.push_back({type, finished(message)});
  }
  /// Removes the last message, which must not have been flushed.
  void pop_back() noexcept {
    if (!closed_) messages_.pop_back();
  }
  void send(MessageType type, const flatbuffers::FlatBufferBuilder& message) {
    push(type, message);
    flush();
  }
  /// Sends what the Channel has room for.
  void flush() noexcept {
    try {
      while (!messages_.empty()) {
        const QueuedMessage& next = messages_.front();
        const Status status = channel_.send(static_cast<std::uint16_t>(next.type), next.bytes, {});
        if (status.code() == Code::no_resource) return;
        messages_.pop_front();  // or the peer is lost, and peer_terminated() follows
      }
    } catch (const std::exception&) {
      // No memory: the rest is sent by progress().
    }
  }
  /// Drops all messages, also those of later calls: the peer is gone.
  void close() noexcept {
    closed_ = true;
    messages_.clear();
  }
  bool empty() const noexcept { return messages_.empty(); }

 private:
  struct QueuedMessage {
    MessageType type;
    std::vector<std::byte> bytes;
  };
  Channel& channel_;
  std::deque<QueuedMessage> messages_;
  bool closed_ = false;
};

}  // namespace linkspan::transport::nccl_net
