#include "engine/engine_impl.hpp"

#include <algorithm>
#include <utility>

#include "engine/diagnostics/metrics_server.hpp"
#include "engine/diagnostics/profiler_range.hpp"
#include "engine/transfers/completion_queue.hpp"

namespace linkspan::engine {
namespace {

using namespace std::chrono_literals;

// How long before the predicted end of a copy for a peer the Control thread begins to poll, and for
// how long it polls.
constexpr Duration kBeforeCompletion = 100us, kControlAwake = 200us;

}  // namespace

Result<std::shared_ptr<EngineImpl>> EngineImpl::open(const EngineOptions& options) {
  auto context = EngineContext::create(options);
  if (!context.ok()) return context.status();
  // Shared with every handle of the user. In a forked child its end would wait for threads that do
  // not exist.
  std::shared_ptr<EngineImpl> impl(new EngineImpl(*std::move(context)), [](EngineImpl* ending) {
    // If a thread does not end the object is leaked: nothing may wait for it.
    if (!ending->forked() && ending->has_ended()) delete ending;
  });
  if (Status status = impl->start(); !status.ok()) return status;
  return impl;
}

Status EngineImpl::start() {
  auto control = control::ControlPlane::open(context_->identity, services_, context_->log);
  if (!control.ok()) return control.status();
  control_ = *std::move(control);
  services_.manager.set_control(*control_);
  auto metrics = serve_metrics(services_.diagnostics, context_->options, context_->log);
  if (!metrics.ok()) return metrics.status();
  metrics_ = *std::move(metrics);
  if (context_->options.nvtx && !ProfilerRange::available() &&
      context_->log.enabled(base::Level::warning))
    context_->log.write(base::Level::warning,
                        "LINKSPAN_NVTX=1, but this linkspan was built without NVTX's headers: a "
                        "profiler shows no ranges");
  return context_->progress->start([this] { return poll(); });
}

EngineImpl::~EngineImpl() {
  // Each uses the next: the control plane the imports, these the ProgressThread.
  if (control_) control_->close(base::Deadline::in(1s));
  services_.imports.end();
  context_->progress->end();
  services_.windows.clear();
  services_.peers.destroy();
}

transport::PollHint EngineImpl::poll() {
  using When = transport::PollHint::When;
  const base::Time now = base::Clock::steady().now();
  const transport::PollHint peers = services_.peers.poll(now);
  // Peers usually send the next request as soon as a copy for them completes, so the control
  // thread keeps polling around that time.
  if (peers.for_peer && (peers.when == When::now || peers.at - now < kBeforeCompletion))
    control_->stay_awake(kControlAwake);
  const transport::PollHint of_kernels =
      transport::earlier(services_.windows.serve(), services_.captures.serve());
  return transport::earlier(transport::earlier(peers, of_kernels), calls_.expire(now));
}

Status EngineImpl::notify(std::uint64_t peer, std::span<const std::byte> message) {
  const auto found = services_.peers.find(peer);
  return found == nullptr ? not_connected(peer) : found->notify(message);
}

PeerState EngineImpl::state(std::uint64_t peer) const {
  const auto found = closed_ ? nullptr : services_.peers.find(peer);
  return found == nullptr ? PeerState::gone : found->state();
}

Status EngineImpl::wait(const TransferState& transfer, Duration timeout) {
  const auto is_quiet = [&] { return transfer.quiet.load(std::memory_order_acquire); };
  if (is_quiet()) return transfer.end;
  const base::Time now = base::Clock::steady().now();
  if (const auto peer = services_.peers.find(transfer.peer))
    peer->wait(transfer, now,
               now + std::clamp(timeout, Duration::zero(), Duration(base::Time::max() - now)));
  if (is_quiet()) return transfer.end;
  context_->progress->wake();
  return {Code::pending, Scope::request,
          "transfer " + std::to_string(transfer.id) + " goes on: the wait's time-out passed"};
}

bool EngineImpl::poll(const TransferState& transfer) noexcept {
  if (const auto peer = services_.peers.find(transfer.peer))
    peer->try_progress(base::Clock::steady().now());
  return transfer.quiet.load(std::memory_order_acquire);
}

Status EngineImpl::cancel(TransferState& transfer) {
  if (const auto peer = services_.peers.find(transfer.peer)) peer->cancel(transfer);
  context_->progress->wake();
  if (transfer.quiet.load(std::memory_order_acquire)) return {};
  return {Code::pending, Scope::request,
          "transfer " + std::to_string(transfer.id) + " is not quiet yet"};
}

Status EngineImpl::attach_completion_queue(TransferState& transfer,
                                           std::shared_ptr<CompletionQueueState> queue,
                                           std::uint64_t cookie) {
  if (transfer.completion.added.exchange(true))
    return {Code::invalid_argument, Scope::request,
            "transfer " + std::to_string(transfer.id) + " was added to a completion queue before"};
  queue->reserve();
  if (const auto peer = services_.peers.find(transfer.peer))
    peer->attach(transfer, std::move(queue), cookie);
  else
    queue->push(cookie);       // its peer is forgotten, so it is quiet
  context_->progress->wake();  // perhaps the only thread left to poll
  return {};
}

bool EngineImpl::has_ended() {
  if (metrics_ != nullptr && !metrics_->end(base::Deadline::in(1s))) return false;
  return control_ == nullptr || control_->end(base::Deadline::in(1s)).ok();
}

}  // namespace linkspan::engine
