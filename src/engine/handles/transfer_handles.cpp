// Prepared, Transfer, AnyFuture and CompletionQueue: each call goes to the EngineImpl or the state.
#include "engine/on_engine_impl.hpp"
#include "engine/transfers/completion_queue.hpp"
#include "linkspan/completion_queue.hpp"

namespace linkspan {

using engine::handle_of;
using engine::on;

namespace {

/// Returns why nothing can be added to a queue, or OK.
Status usable(const engine::CompletionQueueState* queue) {
  if (queue == nullptr) return {Code::invalid_argument, Scope::request, "no completion queue"};
  if (queue->forked())
    return {Code::invalid_argument, Scope::process,
            "this process was forked from the one that made the completion queue: make one here"};
  return {};
}

Status no_call() { return {Code::invalid_argument, Scope::request, "no call"}; }

}  // namespace

Prepared::Prepared(std::shared_ptr<engine::EngineImpl> impl,
                   std::shared_ptr<engine::PreparedState> state)
    : impl_(std::move(impl)), state_(std::move(state)) {}
std::uint64_t Prepared::bytes() const noexcept {
  return state_ == nullptr ? 0 : state_->size.bytes;
}
Result<Transfer> Prepared::post(const TransferOptions& options) const {
  return handle_of<Transfer>(impl_,
                             [&](auto& its) { return its.submission.post(state_, options); });
}
Result<Transfer> Prepared::post(std::span<const std::uint32_t> positions,
                                const TransferOptions& options) const {
  return handle_of<Transfer>(
      impl_, [&](auto& its) { return its.submission.post(*state_, positions, options); });
}
Result<Transfer> Prepared::post_pairs(std::span<const std::uint32_t> indices,
                                      const TransferOptions& options) const {
  return handle_of<Transfer>(
      impl_, [&](auto& its) { return its.submission.post_pairs(state_, indices, options); });
}
Result<CapturedTransfer> Prepared::capture(const StreamOrder& stream,
                                           const CaptureOptions& options) const {
  return handle_of<CapturedTransfer>(
      impl_, [&](auto& its) { return its.captures.capture(*state_, stream, options); });
}

CapturedTransfer::CapturedTransfer(std::shared_ptr<engine::EngineImpl> impl,
                                   std::shared_ptr<engine::CapturedState> state)
    : impl_(std::move(impl)), state_(std::move(state)) {}
std::uint64_t CapturedTransfer::bytes() const noexcept {
  return state_ == nullptr ? 0 : state_->bytes;
}
std::uint64_t CapturedTransfer::completed() const noexcept {
  return state_ == nullptr || impl_->forked() ? 0 : state_->copy->completed();
}
std::uint64_t CapturedTransfer::refused() const noexcept {
  return state_ == nullptr || impl_->forked() ? 0 : state_->copy->refused();
}
Status CapturedTransfer::wait(std::uint64_t n, Duration timeout) const {
  return on(impl_, [&](auto& impl) { return impl.services().captures.wait(*state_, n, timeout); });
}
Status CapturedTransfer::status() const {
  return on(impl_, [&](auto& impl) { return impl.services().captures.status(*state_); });
}
Status CapturedTransfer::close(Duration timeout) const {
  return on(impl_, [&](auto& impl) { return impl.services().captures.close(*state_, timeout); });
}

Transfer::Transfer(std::shared_ptr<engine::EngineImpl> impl,
                   std::shared_ptr<engine::TransferState> state)
    : impl_(std::move(impl)), state_(std::move(state)) {}
Status Transfer::wait(Duration timeout) const {
  if (state_ == nullptr) return {Code::invalid_argument, Scope::request, "no transfer"};
  return on(impl_, [&](auto& impl) { return impl.wait(*state_, timeout); });
}
bool Transfer::done() const noexcept {
  if (state_ == nullptr || state_->quiet.load(std::memory_order_acquire)) return true;
  return !impl_->forked() && impl_->poll(*state_);
}
Status Transfer::status() const {
  if (state_ == nullptr) return {Code::invalid_argument, Scope::request, "no transfer"};
  if (!done()) return {Code::pending, Scope::request, "it is not quiet yet"};
  return state_->end;
}
Status Transfer::cancel() const {
  if (state_ == nullptr) return {Code::invalid_argument, Scope::request, "no transfer"};
  return on(impl_, [&](auto& impl) { return impl.cancel(*state_); });
}
std::uint64_t Transfer::bytes() const noexcept {
  if (state_ == nullptr) return 0;
  const bool room = state_->message != nullptr && !state_->message->sends &&
                    !state_->quiet.load(std::memory_order_acquire);
  return room ? 0 : state_->bytes;
}
std::uint64_t Transfer::id() const noexcept { return state_ == nullptr ? 0 : state_->id; }

bool AnyFuture::done() const noexcept { return state_ == nullptr || state_->done(); }
void AnyFuture::cancel() const {
  if (state_ != nullptr) state_->cancel();
}
Status AnyFuture::await(Duration timeout) const {
  return state_ == nullptr ? no_call() : state_->wait(base::Deadline::in(timeout));
}
const void* AnyFuture::value() const noexcept { return state_->value(); }

CompletionQueue::CompletionQueue(std::shared_ptr<engine::CompletionQueueState> state)
    : state_(std::move(state)) {}
Result<CompletionQueue> CompletionQueue::create() {
  auto state = engine::CompletionQueueState::create();
  if (!state.ok()) return state.status();
  return CompletionQueue(*std::move(state));
}
int CompletionQueue::fd() const noexcept {
  return state_ == nullptr || state_->forked() ? -1 : state_->fd();
}
Status CompletionQueue::add(const Transfer& transfer, std::uint64_t cookie) {
  if (transfer.state_ == nullptr) return {Code::invalid_argument, Scope::request, "no transfer"};
  if (Status status = usable(state_.get()); !status.ok()) return status;
  return on(transfer.impl_, [&](auto& impl) {
    return impl.attach_completion_queue(*transfer.state_, state_, cookie);
  });
}
Status CompletionQueue::add(const AnyFuture& future, std::uint64_t cookie) {
  if (future.state_ == nullptr) return no_call();
  if (Status status = usable(state_.get()); !status.ok()) return status;
  return future.state_->attach(state_, cookie);
}
std::vector<std::uint64_t> CompletionQueue::take(std::size_t at_most) {
  if (state_ == nullptr || state_->forked()) return {};
  return state_->pop(at_most);
}

}  // namespace linkspan
