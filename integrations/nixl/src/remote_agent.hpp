// nixl/remote_agent.hpp - another agent: its connection, the notifications that wait for it, and
// its memory as it is imported.
//
// Path of a byte: a transfer takes the Peer and the RemoteRegions from here.
// Threads: any thread.
// Invariants: no call waits. An agent that was lost stays lost: NIXL loads its metadata again,
// which makes another RemoteAgent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "integrations/nixl/src/background_tasks.hpp"
#include "integrations/nixl/src/metadata.hpp"
#include "linkspan/engine.hpp"

namespace linkspan::nixl {

/// Refers to the parts of a backend that its agents, memories and requests use. They outlive those.
struct Services {
  Engine& engine;
  BackgroundTasks& tasks;
  const base::Log& log;
  Duration deadline;         ///< Of a transfer without bytes.
  TransferOptions transfer;  ///< Of each transfer, but for its deadline and notification.
};

class RemoteAgent : public std::enable_shared_from_this<RemoteAgent> {
 public:
  RemoteAgent(const Services& services, std::string name, AgentAddress address);

  const std::string& name() const noexcept { return name_; }
  const AgentAddress& address() const noexcept { return address_; }
  bool is_on_this_host() const noexcept { return is_on_this_host_; }

  /// Starts to connect, at the first call. An agent that refuses is lost after 10 s, one that does
  /// not answer after 30 s.
  void connect() LINKSPAN_EXCLUDES(mutex_);
  /// Returns the connected peer. pending: not yet. disconnected: no more, or it did not answer.
  Result<Peer> peer() LINKSPAN_EXCLUDES(mutex_);
  /// Returns false once the agent is lost or was removed.
  bool is_usable() LINKSPAN_EXCLUDES(mutex_);
  /// Sends it now, or queues it for at most 30 s after those that wait. disconnected: the agent is
  /// lost. no_resource: 4096 messages wait.
  Status notify(std::vector<std::byte> message) LINKSPAN_EXCLUDES(mutex_);
  /// Ends the connection and all transfers with the agent.
  void close() LINKSPAN_EXCLUDES(mutex_);
  /// Logs a WARNING, once for each two kinds of memory, if the transfer does not take a path of
  /// this host though both agents are on it.
  void check_path(const Peer& peer, Op op, const Region& local, const RemoteRegion& remote,
                  std::uint64_t blocks, std::uint64_t bytes) LINKSPAN_EXCLUDES(mutex_);

 private:
  struct Message {
    std::vector<std::byte> bytes;
    base::Time until;
  };

  Result<Peer> find_peer() LINKSPAN_REQUIRES(mutex_);
  Status try_connect() LINKSPAN_REQUIRES(mutex_);
  void start_task() LINKSPAN_REQUIRES(mutex_);
  std::optional<base::Time> step() LINKSPAN_EXCLUDES(mutex_);
  void drop_messages(const Status& why) LINKSPAN_REQUIRES(mutex_);

  const Services& services_;
  const std::string name_;
  const AgentAddress address_;
  const bool is_on_this_host_;
  base::Mutex mutex_;
  bool has_task_ LINKSPAN_GUARDED_BY(mutex_) = false;
  std::optional<base::Time> began_ LINKSPAN_GUARDED_BY(mutex_);  // to connect
  base::Time next_attempt_ LINKSPAN_GUARDED_BY(mutex_){};
  std::optional<Future<Peer>> connecting_ LINKSPAN_GUARDED_BY(mutex_);  // an attempt that goes on
  Peer peer_ LINKSPAN_GUARDED_BY(mutex_);
  Status end_ LINKSPAN_GUARDED_BY(mutex_);  // why there is no peer any more
  std::deque<Message> outbox_ LINKSPAN_GUARDED_BY(mutex_);
  std::uint32_t checked_paths_ LINKSPAN_GUARDED_BY(mutex_) = 0;
};

/// One registration of another agent, imported at its first use.
class RemoteMemory {
 public:
  RemoteMemory(const Services& services, std::shared_ptr<RemoteAgent> agent, MemoryAddress address)
      : services_(services), agent_(std::move(agent)), address_(std::move(address)) {}

  const std::shared_ptr<RemoteAgent>& agent() const noexcept { return agent_; }
  /// Returns the region, and starts its import if nothing did. pending: not yet. no_resource: too
  /// many imports go on.
  Result<RemoteRegion> region() LINKSPAN_EXCLUDES(mutex_);

 private:
  const Services& services_;
  const std::shared_ptr<RemoteAgent> agent_;  // also the backend's and other memories'
  const MemoryAddress address_;
  base::Mutex mutex_;
  std::optional<Future<RemoteRegion>> import_ LINKSPAN_GUARDED_BY(mutex_);
  RemoteRegion region_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::nixl
