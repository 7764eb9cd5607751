// Transfers that wait for a stream of the user's where no GPU of ours can wait for it.
#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "engine/transfer_scheduler.hpp"

namespace linkspan::engine {

using namespace std::chrono_literals;

/// The transport cannot wait for the user's stream: we do.
bool TransferScheduler::is_held(const Status& status, const TransferState& transfer) {
  return status.code() == Code::unsupported && transfer.mark && transfer.posted == 0;
}

void TransferScheduler::hold(const std::shared_ptr<TransferState>& transfer) {
  held_.push_back(transfer);
  held_since_ = look_at_held_ = base::Clock::steady().now();
}

Result<bool> TransferScheduler::has_passed(const TransferState& transfer) {
  if (!transfer.mark) return true;
  const auto scope = transfer.stream.device->enter();
  if (!scope.ok()) return scope.status();
  return (*transfer.mark)->done(*scope);
}

/// Costs a driver call for each, hence ever more rarely.
void TransferScheduler::look_at_held(base::Time now) {
  if (held_.empty() || now < look_at_held_) return;
  look_at_held_ = now + std::clamp<Duration>((now - held_since_) / 16, 5us, 1ms);
  // Messages of one peer behind one stream keep their order: none is asked behind one that stays,
  // for the stream may come by in between.
  using Line = std::tuple<std::uint64_t, std::uint64_t, bool>;
  std::set<Line> stay;
  for (const std::shared_ptr<TransferState>& transfer : std::exchange(held_, {})) {
    const Exchange* const x = transfer->exchange.get();
    const Line line{transfer->peer, transfer->stream.key, x != nullptr && x->sends};
    const bool waits = x != nullptr && x->stage == Exchange::Stage::held && stay.contains(line);
    const bool goes_on =
        !waits && (x != nullptr ? message_goes_on(*transfer) : copy_goes_on(transfer));
    if (goes_on) continue;
    held_.push_back(transfer);
    if (x != nullptr) stay.insert(line);
  }
}

/// True: it is held no longer; pump() posts it, or ends what was stopped.
bool TransferScheduler::copy_goes_on(const std::shared_ptr<TransferState>& transfer) {
  if (!transfer->all_posted()) {
    const Result<bool> passed = has_passed(*transfer);
    if (passed.ok() && !*passed) return false;
    if (!passed.ok()) stop(*transfer, passed.status());
    transfer->mark.reset();
  }
  peers_.at(transfer->peer)->queue.push_back(transfer);
  return true;
}

/// True: it is held no longer, because its stream has come by or it is over.
bool TransferScheduler::message_goes_on(TransferState& transfer) {
  Exchange& x = *transfer.exchange;
  if (x.stage == Exchange::Stage::over) return true;
  const Result<bool> passed = has_passed(transfer);
  if (passed.ok() && !*passed) return false;
  transfer.mark.reset();
  const Status status =
      passed.ok() ? put_forward(*peers_.at(transfer.peer), transfer, x.offer) : passed.status();
  if (status.code() == Code::no_resource) return false;
  if (!status.ok()) {
    end_held(transfer, status);
    return true;
  }
  x.stage = Exchange::Stage::unmatched;
  rendezvous_.post(transfer);
  return true;
}

void TransferScheduler::end_held(TransferState& transfer, const Status& status) {
  if (transfer.exchange->stage != Exchange::Stage::held) return;
  transfer.exchange->stage = Exchange::Stage::over;
  look_at_held_ = {};
  end(transfer, settled(transfer, status));
}

}  // namespace linkspan::engine
