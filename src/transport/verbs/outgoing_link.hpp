// transport/verbs/outgoing_link.hpp - the requests from one rail here to one of the peer's, and the
// queue pairs that carry them one after another.
//
// A queue pair that fails, or whose peer is silent, is destroyed: then nothing of it touches memory
// here. The next one has the next epoch. Before the peer answers to it, the peer destroys its end
// of the former: then nothing of that lands there either. This is the fence. Only after it a batch
// ends that was in flight, or is sent again.
// On the path of a byte: between the Endpoint and a RequestQueue.
// Threads: under its peer's mutex; calls that take long are DeviceCalls.
// Invariants: a queue pair is destroyed before the next one is made; requests are outstanding only
// in the states `up` to `opening`.
#pragma once

#include <memory>
#include <string>

#include "transport/verbs/address.hpp"
#include "transport/verbs/device_call.hpp"
#include "transport/verbs/message_queue.hpp"
#include "transport/verbs/request_queue.hpp"

namespace linkspan::transport::verbs {

/// Parts of an Endpoint that all its links use.
struct LinkContext {
  base::Executor& executor;
  const VerbsSettings& settings;
  MessageQueue& messages;
  const SendLimits& limits;
};

/// A rail of the peer's.
struct RailTarget {
  std::uint32_t rail = 0;
  RailAddress address{};
};

/// The rails that a link may join.
struct LinkEnds {
  std::uint32_t from = 0;  ///< Number of `here`.
  Rail here;
  std::vector<RailTarget> there;  ///< Best first, not empty. The next one where one is given up.
  std::size_t device = 0;         ///< Place of the local keys.
};

/// The peer's answer to the request for a queue pair.
struct LinkAnswer {
  std::uint64_t epoch = 0;
  QueuePairRoute route{};
  Status status{};  ///< Why the peer has no queue pair.
};

class OutgoingLink {
 public:
  OutgoingLink(const LinkContext& context, LinkEnds ends)
      : context_(context), ends_(std::move(ends)) {}
  OutgoingLink(const OutgoingLink&) = delete;
  OutgoingLink& operator=(const OutgoingLink&) = delete;
  ~OutgoingLink() = default;  // ends its queue pair

  /// Goes on with what has happened. `needed`: there is something to send.
  void advance(base::Time now, bool needed);
  /// Sends requests of a batch that it carries, for about `share` bytes.
  void fill(VerbsBatch& batch, std::uint64_t share);
  /// `corrupt`: it was not asked for.
  Status on_answer(const LinkAnswer& answer, base::Time now);
  /// Replaces the queue pair, because the peer's device is silent.
  void fence(const Status& why);
  /// Goes over to another rail of the peer's, for a batch that the present one does not carry. Does
  /// nothing while requests are outstanding.
  void redirect() noexcept;
  /// Ends it for ever: the peer is gone.
  void end() noexcept { ending_ = true; }

  bool has_room() const noexcept { return state_ == State::up && queue_->has_room(); }
  bool is_up() const noexcept { return state_ == State::up; }
  bool is_in_flight() const noexcept { return queue_ != nullptr && !queue_->empty(); }
  bool is_from(std::uint32_t rail) const noexcept { return ends_.from == rail; }
  /// Returns a number that grows with the completed requests.
  std::uint64_t completed() const noexcept { return queue_ != nullptr ? queue_->completed() : 0; }
  /// Returns whether it was given up for a while.
  bool is_refused(base::Time now) const noexcept {
    return state_ == State::failed && is_exhausted() && now < failures_.retry_at;
  }
  /// Returns whether the batch's memory is registered with the devices of both ends, as they are
  /// now; of any that it may have.
  bool carries(const VerbsBatch& batch) const noexcept;
  bool may_carry(const VerbsBatch& batch) const noexcept;
  /// Returns whether no other device here is nearer to the memory.
  bool is_nearest(const MemoryKeys& memory) const noexcept {
    return memory.is_nearest(ends_.device);
  }
  bool has_ended() const noexcept { return state_ == State::ended; }
  /// Returns whether a DeviceCall runs or is about to.
  bool is_changing() const noexcept {
    return call_ != nullptr || state_ == State::idle || state_ == State::destroying ||
           (ending_ && state_ != State::ended);
  }
  base::Time retry_at() const noexcept {
    return state_ == State::failed ? failures_.retry_at : base::Time{};
  }
  const Status& why() const noexcept { return failures_.last; }  ///< The last failure.
  std::string describe() const;

 private:
  static constexpr unsigned kMaxFailures = 3;
  enum class State { idle, making, opening, connecting, up, destroying, failed, ended };

  struct Failures {
    unsigned count = 0;     // of the target, without a completed request between them
    std::size_t tried = 0;  // targets that were given up before it
    base::Time retry_at{};
    Status last;
  };

  const RailTarget& target() const noexcept { return ends_.there[target_]; }
  bool is_exhausted() const noexcept {
    return failures_.count >= kMaxFailures && failures_.tried + 1 >= ends_.there.size();
  }
  void next_target() noexcept;
  void make();
  void ask();
  void count_failure(const Status& why) noexcept;
  void on_made();
  void poll();
  void on_failure(const SendFailure& failure) noexcept;
  void destroy();
  void advance_end();

  const LinkContext context_;
  const LinkEnds ends_;
  std::size_t target_ = 0;  // of ends_.there
  State state_ = State::idle;
  std::uint64_t epoch_ = 0;
  std::uint32_t psn_ = 0;
  std::shared_ptr<QueuePair> queue_pair_;  // shared with the DeviceCall
  std::shared_ptr<DeviceCall> call_;       // shared with the Executor
  std::unique_ptr<RequestQueue> queue_;    // from the first queue pair on
  std::uint64_t completed_before_ = 0;
  Failures failures_;
  bool ending_ = false;
};

}  // namespace linkspan::transport::verbs
