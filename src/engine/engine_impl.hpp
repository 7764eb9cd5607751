// engine/engine_impl.hpp - the object behind the public handles: opens an Engine, waits for its
// transfers, and ends it in close().
//
// On the path of a byte: a call goes through to Submission.
// Threads: any thread.
// Invariants: transports outlive endpoints and mappings; after close() has returned OK nothing here
// touches the user's memory.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "base/fork.hpp"
#include "engine/calls/call_queue.hpp"
#include "engine/engine_services.hpp"
#include "net/http_server.hpp"

namespace linkspan::engine {

class EngineImpl final : public std::enable_shared_from_this<EngineImpl> {
 public:
  static Result<std::shared_ptr<EngineImpl>> open(const EngineOptions& options);
  ~EngineImpl();
  EngineImpl(const EngineImpl&) = delete;
  EngineImpl& operator=(const EngineImpl&) = delete;

  EngineServices& services() noexcept { return services_; }
  AsyncCalls& calls() noexcept { return calls_; }

  Status notify(std::uint64_t peer, std::span<const std::byte> message);
  PeerState state(std::uint64_t peer) const;
  Status wait(const TransferState& transfer, Duration timeout);
  /// Makes progress with its peer, unless another thread does. Returns whether it is quiet.
  bool poll(const TransferState& transfer) noexcept;
  Status cancel(TransferState& transfer);
  Status attach_completion_queue(TransferState& transfer,
                                 std::shared_ptr<CompletionQueueState> queue, std::uint64_t cookie);
  std::size_t progress() {
    (void)services_.captures.serve();
    return services_.peers.progress(base::Clock::steady().now());
  }
  // engine_close.cpp
  Status close(Duration timeout);
  Status close(std::uint64_t peer, Duration timeout);
  /// Keeps this object until the process ends. Called when close() failed and no handle is left:
  /// something is not quiet, so nothing here may be freed.
  void keep_forever() { self_ = shared_from_this(); }
  /// Returns true in a forked child of the process that opened the Engine. Nothing here may be
  /// touched then.
  bool forked() const noexcept { return fork_.forked(); }

 private:
  explicit EngineImpl(std::unique_ptr<EngineContext> context) : context_(std::move(context)) {}
  Status start();
  transport::PollHint poll();
  /// Waits up to one second for the Control thread and returns whether it has ended.
  bool has_ended();
  bool await(CloseBlocker blocker, base::Deadline deadline,
             std::optional<std::uint64_t> peer = std::nullopt);

  const base::ForkWatch fork_;
  const std::unique_ptr<EngineContext> context_;
  std::atomic<bool> closed_{false};
  EngineServices services_{this, *context_, closed_};
  std::unique_ptr<control::ControlPlane> control_;
  AsyncCalls calls_{*context_->progress};     // each call holds this object
  std::unique_ptr<net::HttpServer> metrics_;  // null: not asked for
  std::shared_ptr<EngineImpl> self_;          // set by keep_forever()
};

}  // namespace linkspan::engine
