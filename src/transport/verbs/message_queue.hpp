// transport/verbs/message_queue.hpp - messages to the peer that wait for room in the Channel.
//
// Threads: under its peer's mutex.
// Invariants: messages are sent in order.
#pragma once

#include <cstddef>
#include <deque>
#include <exception>
#include <vector>

#include "transport/channel.hpp"
#include "transport/verbs/message_type.hpp"

namespace linkspan::transport::verbs {

class MessageQueue {
 public:
  explicit MessageQueue(Channel& channel) : channel_(channel) {}

  /// Queues a message and sends what the Channel has room for.
  void send(VerbsMessage type, const flatbuffers::FlatBufferBuilder& message) {
    if (closed_) return;
    messages_.push_back({type, finished(message)});
    flush();
  }
  void flush() noexcept {
    try {
      while (!messages_.empty()) {
        const QueuedVerbsMessage& next = messages_.front();
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
  Channel& channel() const noexcept { return channel_; }

 private:
  struct QueuedVerbsMessage {
    VerbsMessage type;
    std::vector<std::byte> bytes;
  };
  Channel& channel_;
  std::deque<QueuedVerbsMessage> messages_;
  bool closed_ = false;
};

}  // namespace linkspan::transport::verbs
