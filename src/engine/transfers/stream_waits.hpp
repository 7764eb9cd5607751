// engine/transfers/stream_waits.hpp - transfers that wait for a user's stream if no stream of ours
// can wait for it.
//
// On the path of a byte: before the first batch is posted.
// Threads: externally synchronised (the peer's mutex).
// Invariants: a transfer leaves only when `resume` says so. Messages after one stream go on in
// their order.
#pragma once

#include <algorithm>
#include <exception>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "engine/transfers/transfer.hpp"

namespace linkspan::engine {

class StreamWaits {
 public:
  bool empty() const noexcept { return waiting_.empty(); }
  base::Time next_poll() const noexcept { return next_poll_; }
  void add(std::shared_ptr<TransferState> transfer, base::Time now) {
    waiting_.push_back(std::move(transfer));
    since_ = next_poll_ = now;
  }
  /// Makes the next poll() poll, because a transfer was stopped.
  void poll_soon() noexcept { next_poll_ = {}; }
  bool contains(const TransferState& transfer) const {
    return std::ranges::any_of(waiting_, [&](const auto& each) { return each.get() == &transfer; });
  }

  /// Calls `act` for each transfer. It must not add or remove one.
  template <class Act>
  void for_each(Act act) {
    for (const auto& transfer : waiting_) act(transfer);
  }

  /// Calls `resume` for each transfer if it is time. Transfers for which it returns false, or that
  /// had no memory, stay. Each call costs a driver call, so polls become ever rarer.
  template <class Resume>
  void poll(base::Time now, Resume resume) {
    using namespace std::chrono_literals;
    if (waiting_.empty() || now < next_poll_) return;
    next_poll_ = now + std::clamp<Duration>((now - since_) / 16, 5us, 1ms);
    // Once a message still waits, later ones after its stream are not polled, since the stream may
    // reach their marks in between.
    std::set<std::pair<std::uint64_t, bool>> blocked;  // stream, direction
    bool no_memory = false;                            // for a message: no later one is polled
    std::vector<std::shared_ptr<TransferState>> waiting;
    waiting.reserve(waiting_.size());  // so that waiting_ has room for the rest
    waiting.swap(waiting_);
    for (const std::shared_ptr<TransferState>& transfer : waiting) {
      const MessageState* const x = transfer->message.get();
      const std::pair order{transfer->streams.after.key, x != nullptr && x->sends};
      const bool waits = x != nullptr && x->stage == MessageState::Stage::waiting_on_stream &&
                         (no_memory || blocked.contains(order));
      try {
        if (!waits && resume(transfer)) continue;
        if (x != nullptr) blocked.insert(order);
      } catch (const std::exception&) {
        no_memory = no_memory || x != nullptr;  // the next poll() tries again
      }
      waiting_.push_back(transfer);
    }
  }

 private:
  std::vector<std::shared_ptr<TransferState>> waiting_;  // also the PeerScheduler's
  base::Time since_{}, next_poll_{};
};

}  // namespace linkspan::engine
