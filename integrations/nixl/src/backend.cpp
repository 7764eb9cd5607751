#include "integrations/nixl/src/backend.hpp"

#include <exception>
#include <utility>

#include "base/options.hpp"
#include "integrations/nixl/src/backend_answer.hpp"

namespace linkspan::nixl {
namespace {

/// Lines of an agent begin with its name.
base::Log log_of(const std::string& agent) {
  const auto environment = base::Options::from_environment();
  const base::Level level = environment.ok() ? environment->log_level : base::Level::warning;
  return {level,
          [prefix = "nixl agent \"" + agent + "\": ", sink = base::stderr_sink()](
              base::Level at, std::string_view text) { sink(at, prefix + std::string(text)); }};
}

Result<std::unique_ptr<BackendParts>> open(const std::string& agent,
                                           const abi::Parameters& parameters, base::Log log) {
  auto options = BackendOptions::parse(parameters);
  if (!options.ok()) return options.status();
  return BackendParts::open(agent, *std::move(options), std::move(log));
}

}  // namespace

LinkspanBackend::LinkspanBackend(const abi::StartArguments& start) : Backend(start) {
  const base::Log log = log_of(agent_);
  auto parts = open(agent_, parameters_, log);
  if (parts.ok())
    parts_ = *std::move(parts);
  else
    log.write(base::Level::error, "the backend does not start: " + parts.status().to_string());
  failed_ = parts_ == nullptr;
}

LinkspanBackend::~LinkspanBackend() {
  if (fork_.forked()) (void)parts_.release();  // its threads are the parent's
}

abi::Memories LinkspanBackend::getSupportedMems() const {
  return {abi::Memory::dram, abi::Memory::vram};
}

Result<std::shared_ptr<RemoteAgent>> LinkspanBackend::find(const std::string& agent) const {
  base::MutexLock lock(mutex_);
  if (const auto found = agents_.find(agent); found != agents_.end()) return found->second;
  return Status(Code::not_found, Scope::request,
                "agent \"" + agent + "\" is not known: load its metadata first");
}

abi::Answer LinkspanBackend::registerMem(const abi::DescriptorWithText& memory,
                                         const abi::Memory& kind, abi::Handle*& out) {
  return answer("registerMem", [&]() -> Status {
    auto added = parts_->registrations.add(memory, kind);
    if (!added.ok()) return added.status();
    out = added->release();
    return {};
  });
}

abi::Answer LinkspanBackend::deregisterMem(abi::Handle* memory) {
  return answer("deregisterMem", [&]() -> Status {
    const std::unique_ptr<LocalMemory> owned(static_cast<LocalMemory*>(memory));
    return owned == nullptr ? Status() : parts_->registrations.end(*owned);
  });
}

abi::Answer LinkspanBackend::getPublicData(const abi::Handle* memory, std::string& out) const {
  return answer("getPublicData", [&]() -> Status {
    out = static_cast<const LocalMemory*>(memory)->published.serialize();
    return {};
  });
}

abi::Answer LinkspanBackend::getConnInfo(std::string& out) const {
  return answer("getConnInfo", [&]() -> Status {
    out = parts_->address.serialize();
    return {};
  });
}

abi::Answer LinkspanBackend::loadRemoteConnInfo(const std::string& agent, const std::string& text) {
  return answer("loadRemoteConnInfo", [&]() -> Status {
    auto address = AgentAddress::parse(text);
    if (!address.ok()) return address.status();
    std::shared_ptr<RemoteAgent> before;
    auto added = std::make_shared<RemoteAgent>(parts_->services, agent, *std::move(address));
    {
      base::MutexLock lock(mutex_);
      std::shared_ptr<RemoteAgent>& place = agents_[agent];
      if (place != nullptr && place->address().engine == added->address().engine &&
          place->is_usable())
        return {};
      before = std::exchange(place, added);
    }
    if (before != nullptr) before->close();  // it restarted under its name, or was lost
    added->connect();
    return {};
  });
}

abi::Answer LinkspanBackend::connect(const std::string& agent) {
  return answer("connect", [&]() -> Status {
    if (agent == agent_) return {};
    auto found = find(agent);
    if (!found.ok()) return found.status();
    (*found)->connect();
    return {};
  });
}

abi::Answer LinkspanBackend::disconnect(const std::string& agent) {
  return answer("disconnect", [&]() -> Status {
    std::shared_ptr<RemoteAgent> removed;
    {
      base::MutexLock lock(mutex_);
      if (auto node = agents_.extract(agent)) removed = std::move(node.mapped());
    }
    if (removed != nullptr) removed->close();
    return {};
  });
}

abi::Answer LinkspanBackend::loadRemoteMD(const abi::DescriptorWithText& memory,
                                          const abi::Memory& /*kind*/, const std::string& agent,
                                          abi::Handle*& out) {
  return answer("loadRemoteMD", [&]() -> Status {
    auto found = find(agent);
    if (!found.ok()) return found.status();
    auto address = MemoryAddress::parse(memory.text);
    if (!address.ok()) return address.status();
    auto remote = std::make_shared<RemoteMemory>(parts_->services, *found, *address);
    out = std::make_unique<LoadedMemory>(std::move(remote), *address).release();
    return {};
  });
}

abi::Answer LinkspanBackend::unloadMD(abi::Handle* memory) {
  return answer("unloadMD", [&]() -> Status {
    delete memory;
    return {};
  });
}

}  // namespace linkspan::nixl
