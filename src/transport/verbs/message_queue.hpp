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
  static constexpr std::size_t kMaxAnswers = 4096;  ///< That wait, to a peer that reads them.

  explicit MessageQueue(Channel& channel) : channel_(channel) {}

  /// Queues a message and sends what the Channel has room for.
  void send(VerbsMessage type, const flatbuffers::FlatBufferBuilder& message) {
    if (closed_) return;
    messages_.push_back({type, finished(message)});
    answers_ += is_answer(type) ? 1 : 0;
    flush();
  }
  void flush() noexcept {
    try {
      while (!messages_.empty()) {
        const QueuedVerbsMessage& next = messages_.front();
        const Status status = channel_.send(static_cast<std::uint16_t>(next.type), next.bytes, {});
        if (status.code() == Code::no_resource) return;
        answers_ -= is_answer(next.type) ? 1 : 0;
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
    answers_ = 0;
  }
  bool empty() const noexcept { return messages_.empty(); }
  /// Returns whether the peer goes on asking and reads no answer.
  bool has_too_many_answers() const noexcept { return answers_ > kMaxAnswers; }
  Channel& channel() const noexcept { return channel_; }

 private:
  struct QueuedVerbsMessage {
    VerbsMessage type;
    std::vector<std::byte> bytes;
  };
  Channel& channel_;
  std::deque<QueuedVerbsMessage> messages_;
  std::size_t answers_ = 0;  // among them
  bool closed_ = false;
};

}  // namespace linkspan::transport::verbs
