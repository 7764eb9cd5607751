// transport/verbs/incoming_links.hpp - the queue pairs here that answer a peer's requests: its
// network card writes to and reads from memory of this side by them.
//
// Off the path of a byte.
// Threads: under its peer's mutex; calls that take long are DeviceCalls.
// Invariants: the peer gets the answer to an epoch only once the queue pair of the former one is
// destroyed (OutgoingLink).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/verbs/address.hpp"
#include "transport/verbs/device_call.hpp"
#include "transport/verbs/message_queue.hpp"

namespace linkspan::transport::verbs {

class IncomingLinks {
 public:
  IncomingLinks(base::Executor& executor, const VerbsSettings& settings, MessageQueue& messages,
                std::span<const Rail> here, std::span<const RailAddress> there)
      : executor_(executor),
        settings_(settings),
        messages_(messages),
        here_(here),
        there_(there),
        links_(there.size()) {}

  /// Handles a peer's VerbsOpen.
  Status on_open(std::span<const std::byte> bytes);
  void advance();
  /// Destroys all queue pairs, for ever: the peer is gone.
  void end() noexcept;
  /// Returns true once none is left, after end(): nothing lands by them any more.
  bool has_ended() const noexcept;
  bool is_changing() const noexcept;

 private:
  struct Question {
    std::uint64_t epoch = 0;
    std::uint32_t from = 0, to = 0;
    QueuePairRoute route{};
  };
  struct IncomingLink {
    std::optional<Question> question{};       // not begun
    std::optional<Question> begun{};          // `call` makes the queue pair of it
    std::uint64_t epoch = 0;                  // of the last question
    std::shared_ptr<QueuePair> queue_pair{};  // shared with the DeviceCall
    std::shared_ptr<DeviceCall> call{};       // shared with the Executor
  };

  void begin(IncomingLink& link);
  void answer(const IncomingLink& link);

  base::Executor& executor_;
  const VerbsSettings& settings_;
  MessageQueue& messages_;
  const std::span<const Rail> here_;
  const std::span<const RailAddress> there_;
  std::vector<IncomingLink> links_;  // by the peer's rails
  bool ending_ = false;
};

}  // namespace linkspan::transport::verbs
