// nixl/backend.hpp - the backend LINKSPAN of one agent, as NIXL calls it.
//
// Path of a byte: prepXfer and postXfer lead to a Request.
// Threads: any thread, without NIXL's own lock.
// Invariants: no exception leaves a call, and no call waits for a peer, but deregisterMem for at
// most 0.2 s. After a fork the child's calls answer backend_error and touch nothing.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/fork.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "integrations/nixl/src/abi.hpp"
#include "integrations/nixl/src/background_tasks.hpp"
#include "integrations/nixl/src/options.hpp"
#include "integrations/nixl/src/registered_memory.hpp"
#include "integrations/nixl/src/remote_agent.hpp"
#include "linkspan/engine.hpp"

namespace linkspan::nixl {

/// Holds the Engine of a backend and all that uses it. A forked child touches none of it.
struct BackendParts {
  base::Log log;
  Engine engine;
  std::unique_ptr<BackgroundTasks> tasks;
  AgentAddress address{};
  Services services;
  Registrations registrations;

  BackendParts(base::Log to, Engine opened, std::unique_ptr<BackgroundTasks> started,
               const BackendOptions& options)
      : log(std::move(to)),
        engine(std::move(opened)),
        tasks(std::move(started)),
        services{engine, *tasks, log, options.deadline, options.transfer},
        registrations(services) {}

  /// Opens the Engine of that agent and lets it listen.
  static Result<std::unique_ptr<BackendParts>> open(const std::string& agent,
                                                    BackendOptions options, base::Log log);
  BackendParts(const BackendParts&) = delete;
  BackendParts& operator=(const BackendParts&) = delete;
  /// Stops the background tasks, then closes the Engine.
  ~BackendParts();
};

class LinkspanBackend final : public abi::Backend {
 public:
  explicit LinkspanBackend(const abi::StartArguments& start);
  LinkspanBackend(const LinkspanBackend&) = delete;
  LinkspanBackend& operator=(const LinkspanBackend&) = delete;
  ~LinkspanBackend() override;

  bool supportsRemote() const override { return true; }
  bool supportsLocal() const override { return false; }  // NIXL asks other backends, or refuses
  bool supportsNotif() const override { return true; }
  abi::Memories getSupportedMems() const override;
  abi::Answer registerMem(const abi::DescriptorWithText& memory, const abi::Memory& kind,
                          abi::Handle*& out) override;
  abi::Answer deregisterMem(abi::Handle* memory) override;
  abi::Answer connect(const std::string& agent) override;
  abi::Answer disconnect(const std::string& agent) override;
  abi::Answer unloadMD(abi::Handle* memory) override;
  abi::Answer prepXfer(const abi::Direction& direction, const abi::TransferList& local,
                       const abi::TransferList& remote, const std::string& agent,
                       abi::Request*& out, const abi::OptionalArguments* more) const override;
  abi::Answer postXfer(const abi::Direction& direction, const abi::TransferList& local,
                       const abi::TransferList& remote, const std::string& agent,
                       abi::Request*& request, const abi::OptionalArguments* more) const override;
  abi::Answer checkXfer(abi::Request* request) const override;
  abi::Answer releaseReqH(abi::Request* request) const override;
  abi::Answer getPublicData(const abi::Handle* memory, std::string& out) const override;
  abi::Answer getConnInfo(std::string& out) const override;
  abi::Answer loadRemoteConnInfo(const std::string& agent, const std::string& text) override;
  abi::Answer loadRemoteMD(const abi::DescriptorWithText& memory, const abi::Memory& kind,
                           const std::string& agent, abi::Handle*& out) override;
  abi::Answer getNotifs(abi::Notifications& out) override;
  abi::Answer genNotif(const std::string& agent, const std::string& message) const override;
  abi::Answer estimateXferCost(const abi::Direction& direction, const abi::TransferList& local,
                               const abi::TransferList& remote, const std::string& agent,
                               abi::Request* const& request, std::chrono::microseconds& duration,
                               std::chrono::microseconds& margin, int& method,
                               const abi::CostArguments* more) const override;

 private:
  using Agents = std::map<std::string, std::shared_ptr<RemoteAgent>>;

  template <class Body>
  abi::Answer answer(const char* call, Body body) const noexcept;
  Result<std::shared_ptr<RemoteAgent>> find(const std::string& agent) const
      LINKSPAN_EXCLUDES(mutex_);

  const base::ForkWatch fork_;
  std::unique_ptr<BackendParts> parts_;
  mutable base::Mutex mutex_;
  Agents agents_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::nixl
