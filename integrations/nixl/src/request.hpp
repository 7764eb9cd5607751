// nixl/request.hpp - a transfer as NIXL posts it: once or repeatedly, checked, released.
//
// Path of a byte: post() submits all pairs of memories as one transfer, at once or as soon as the
// agent is connected and its memories are imported.
// Threads: any thread.
// Invariants: at most one transfer is in flight. release() succeeds only when nothing touches the
// memory any more.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "integrations/nixl/src/abi.hpp"
#include "integrations/nixl/src/remote_agent.hpp"
#include "integrations/nixl/src/transfer_plan.hpp"
#include "linkspan/engine.hpp"
#include "linkspan/prepared.hpp"

namespace linkspan::nixl {

/// The memories of a plan's pairs, in its order.
struct PairMemories {
  std::vector<Region> local;
  std::vector<std::shared_ptr<RemoteMemory>> remote;  // also the loaded metadata's
};

class Request : public std::enable_shared_from_this<Request> {
 public:
  Request(const Services& services, std::shared_ptr<RemoteAgent> agent, Op op, TransferPlan plan,
          PairMemories memories);

  /// Starts the transfer, or lets it start as soon as it can. The notification follows the data;
  /// empty: none. busy: it is in flight. Errors are those of Peer::write() and of the agent.
  Status post(std::vector<std::byte> notification) LINKSPAN_EXCLUDES(mutex_);
  /// Returns pending, ok or why it failed. Logs a failure once.
  Status check() LINKSPAN_EXCLUDES(mutex_);
  /// Cancels what is in flight. pending: it is not quiet yet, ask again.
  Status release() LINKSPAN_EXCLUDES(mutex_);
  /// Returns how long it takes by the rates of the path. pending: the path is not known yet.
  Result<Duration> estimate() LINKSPAN_EXCLUDES(mutex_);

 private:
  enum class State : std::uint8_t { idle, waiting, running };

  Status start() LINKSPAN_REQUIRES(mutex_);
  Status import() LINKSPAN_REQUIRES(mutex_);
  Result<Transfer> submit(const Peer& peer) LINKSPAN_REQUIRES(mutex_);
  Status end(Status end) LINKSPAN_REQUIRES(mutex_);
  Status advance() LINKSPAN_REQUIRES(mutex_);
  std::optional<base::Time> step() LINKSPAN_EXCLUDES(mutex_);

  const Services& services_;
  const std::shared_ptr<RemoteAgent> agent_;  // also the backend's
  const Op op_;
  const TransferPlan plan_;
  const PairMemories memories_;
  base::Mutex mutex_;
  State state_ LINKSPAN_GUARDED_BY(mutex_) = State::idle;
  Status last_ LINKSPAN_GUARDED_BY(mutex_);  // of the last post
  std::vector<TransferPart> parts_ LINKSPAN_GUARDED_BY(mutex_);
  struct Posted {
    std::uint64_t count = 0;  // posts that were submitted
    std::vector<std::byte> notification{};
    std::optional<base::Deadline> deadline{};
    Transfer transfer{};
    Prepared prepared{};  // from the second post on
  } posted_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::nixl
