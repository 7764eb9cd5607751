// The end of an Engine, and of one peer of it: cancels, waits until all is quiet, says goodbye.
#include <algorithm>
#include <utility>

#include "base/interrupt.hpp"
#include "engine/engine_impl.hpp"

namespace linkspan::engine {
namespace {

using namespace std::chrono_literals;

constexpr Duration kMaxWait = 10ms;           // between polls of what close() waits for
constexpr Duration kRemoteCloseTimeout = 1s;  // for each step of close()

Status engine_closed() { return {Code::canceled, Scope::process, "the Engine is closed"}; }

/// How long close() waits at least for the threads of canceled calls.
constexpr Duration kCallsEnd = 1s;

}  // namespace

/// Waits until close() is not blocked by `blocker`. Returns false at the deadline or on an
/// interrupt. Drops remote peers that block it for long: they map nothing of ours, and their
/// connections stop writing by themselves.
bool EngineImpl::await(CloseBlocker blocker, base::Deadline deadline,
                       std::optional<std::uint64_t> peer) {
  const base::Deadline patience = base::Deadline::in(
      peer ? std::min<Duration>(kRemoteCloseTimeout, deadline.left() / 4) : kRemoteCloseTimeout);
  while (true) {
    const std::uint64_t seen = services_.peers.changes();
    (void)progress();
    if (!services_.peers.is_close_blocked(blocker, peer)) return true;
    if (deadline.passed() || (peer && closed_)) return false;
    if (patience.passed())
      for (const auto& session : services_.peers.remote_close_blockers(blocker, peer))
        control_->drop(session, Status(Code::timed_out, Scope::peer, "it holds up close()"));
    if (services_.peers.wait_for_change(
            seen, base::Deadline::in(std::min<Duration>(deadline.left(), kMaxWait))))
      return false;
  }
}

Status EngineImpl::close(Duration timeout) {
  const base::Deadline deadline = base::Deadline::in(timeout);
  const auto pending = [](std::string what) {
    return InterruptCheck::has_ended() ? base::interrupted()
                                       : Status(Code::pending, Scope::process, std::move(what));
  };
  calls_.close(engine_closed());
  Status finished = services_.windows.finish(deadline);
  if (InterruptCheck::has_ended()) return base::interrupted();
  services_.windows.end(std::nullopt, engine_closed());
  if (!finished.ok()) return finished;
  if (Status status = services_.captures.finish(std::nullopt, engine_closed(), deadline);
      !status.ok())
    return status;
  services_.peers.close(engine_closed());
  context_->progress->wake();
  if (!await(CloseBlocker::transfers, deadline)) {
    std::string names;
    for (const auto& peer : services_.peers.all())
      if (const std::size_t unquiet = peer->unquiet(); unquiet != 0)
        names += (names.empty() ? "" : ", ") + peer->session()->describe() + " with " +
                 std::to_string(unquiet);
    return pending("not quiet: transfers of " + names);
  }
  // Copies for peers run to their end. Their Endpoints begin none any more.
  if (!await(CloseBlocker::copies, deadline)) return pending("a copy for a peer is not quiet");
  closed_ = true;
  services_.registrations.close();
  services_.imports.close();
  services_.inbox.close();
  services_.manager.close();
  control_->send_goodbye();
  // Over a network a peer may have begun something more before it received the goodbye.
  if (!await(CloseBlocker::memory, deadline)) {
    std::string names;
    for (const auto& peer : services_.peers.all())
      if (peer->has_keys()) names += (names.empty() ? "" : ", ") + peer->session()->describe();
    return pending(names.empty() ? "a copy for a peer is not quiet"
                                 : "memory of this Engine may be copied by " + names);
  }
  (void)await(CloseBlocker::messages, deadline);  // what is left of them is dropped
  if (!calls_.end(base::Deadline::in(std::max<Duration>(deadline.left(), kCallsEnd))))
    return pending("a canceled call stands still in the driver, the kernel or the resolver");
  if (metrics_ != nullptr && !metrics_->end(deadline))
    return pending("the thread that serves its counters stands still");
  Status ended = control_->end(deadline);
  if (context_->log_queue != nullptr)
    (void)context_->log_queue->flush(base::Deadline::in(base::LogQueue::kPatience));
  return ended;
}

Status EngineImpl::close(std::uint64_t peer, Duration timeout) {
  const base::Deadline deadline = base::Deadline::in(timeout);
  const auto pending = [this, peer](const char* what) {
    if (closed_) return engine_closed();
    return InterruptCheck::has_ended()
               ? base::interrupted()
               : Status(Code::pending, Scope::peer, "peer " + std::to_string(peer) + " " + what);
  };
  const auto found = services_.peers.find(peer);
  if (found == nullptr) return {};
  const Status why(Code::canceled, Scope::peer,
                   "this side has closed peer " + std::to_string(peer));
  // Before the peer is closed, because their notifications still go to it.
  if (Status status = services_.captures.finish(peer, why, deadline); !status.ok()) return status;
  if (!found->close()) return {};
  services_.captures.end(peer, why);  // one that began meanwhile
  services_.windows.end(peer, why);
  services_.imports.end_lookups(peer, why);
  services_.directory.forget_peer(peer);
  context_->progress->wake();
  if (!await(CloseBlocker::transfers, deadline, peer))
    return pending("may still touch memory of transfers with it");
  if (!await(CloseBlocker::copies, deadline, peer))
    return pending("has asked for a copy that is not quiet");
  // The user may keep handles of its regions.
  for (const auto& region : found->imported())
    for (std::size_t i = 0; i < region->mappings.size(); ++i)
      if (region->mappings[i] != nullptr) context_->transports[i]->unmap(*region->mappings[i]);
  control_->send_goodbye(peer);
  if (await(CloseBlocker::memory, deadline, peer)) return {};
  return pending("has not answered the goodbye, and may still copy on memory that it had imported");
}

}  // namespace linkspan::engine
