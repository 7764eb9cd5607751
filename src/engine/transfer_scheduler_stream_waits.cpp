// Transfers that wait for a user's stream if no stream of ours can wait for it.
#include <algorithm>
#include <exception>
#include <set>
#include <tuple>
#include <utility>

#include "engine/transfer_scheduler.hpp"

namespace linkspan::engine {

using namespace std::chrono_literals;

/// Returns true if the transport cannot wait for the user's stream, so the scheduler does.
bool TransferScheduler::must_wait_for_stream(const Status& status, const TransferState& transfer) {
  return status.code() == Code::unsupported && transfer.mark && transfer.posted == 0;
}

void TransferScheduler::wait_for_stream(const std::shared_ptr<TransferState>& transfer) {
  waiting_on_stream_.push_back(transfer);
  stream_waits_since_ = next_stream_poll_ = base::Clock::steady().now();
}

Result<bool> TransferScheduler::has_passed(const TransferState& transfer) {
  if (!transfer.mark) return true;
  const auto scope = transfer.stream.device->enter();
  if (!scope.ok()) return scope.status();
  return (*transfer.mark)->done(*scope);
}

/// Polls the marks of waiting transfers, each by a driver call, and therefore ever more rarely.
void TransferScheduler::poll_user_streams(base::Time now) {
  if (waiting_on_stream_.empty() || now < next_stream_poll_) return;
  next_stream_poll_ = now + std::clamp<Duration>((now - stream_waits_since_) / 16, 5us, 1ms);
  // Messages with one peer after one stream keep their order: once one still waits, later ones are
  // not polled, since the stream may reach their marks in between.
  using MessageOrder = std::tuple<std::uint64_t, std::uint64_t, bool>;
  std::set<MessageOrder> blocked;
  std::vector<std::shared_ptr<TransferState>> waiting;
  waiting.reserve(waiting_on_stream_.size());  // so that waiting_on_stream_ has room for the rest
  waiting.swap(waiting_on_stream_);
  for (const std::shared_ptr<TransferState>& transfer : waiting) {
    const MessageState* const x = transfer->message.get();
    const MessageOrder order{transfer->peer, transfer->stream.key, x != nullptr && x->sends};
    const bool waits = x != nullptr && x->stage == MessageState::Stage::waiting_on_stream &&
                       blocked.contains(order);
    try {
      const bool goes_on =
          !waits && (x != nullptr ? resume_message(*transfer) : resume_copy(transfer));
      if (goes_on) continue;
      if (x != nullptr) blocked.insert(order);
    } catch (const std::exception&) {
      // No memory: the next progress() polls this transfer again.
    }
    waiting_on_stream_.push_back(transfer);
  }
}

/// Returns true if the transfer waits no longer; pump() then posts it, or ends it if it was
/// stopped.
bool TransferScheduler::resume_copy(const std::shared_ptr<TransferState>& transfer) {
  if (!transfer->all_posted()) {
    const Result<bool> passed = has_passed(*transfer);
    if (passed.ok() && !*passed) return false;
    if (!passed.ok()) stop(*transfer, passed.status());
    transfer->mark.reset();
  }
  peers_.at(transfer->peer)->queue.push_back(transfer);
  return true;
}

/// Returns true if the message waits no longer: the stream has reached the mark, or it is over.
bool TransferScheduler::resume_message(TransferState& transfer) {
  MessageState& x = *transfer.message;
  if (x.stage == MessageState::Stage::over) return true;
  const Result<bool> passed = has_passed(transfer);
  if (passed.ok() && !*passed) return false;
  transfer.mark.reset();
  const Status status =
      passed.ok() ? send_offer(*peers_.at(transfer.peer), transfer, x.offer) : passed.status();
  if (status.code() == Code::no_resource) return false;
  if (!status.ok()) {
    end_waiting_message(transfer, status);
    return true;
  }
  x.stage = MessageState::Stage::unmatched;
  rendezvous_.post(transfer);
  return true;
}

void TransferScheduler::end_waiting_message(TransferState& transfer, const Status& status) {
  if (transfer.message->stage != MessageState::Stage::waiting_on_stream) return;
  transfer.message->stage = MessageState::Stage::over;
  next_stream_poll_ = {};
  end(transfer, user_status(transfer, status));
}

}  // namespace linkspan::engine
