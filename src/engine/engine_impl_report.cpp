// Reports of an EngineImpl to operators: dump(), metrics(), and the log line of a new peer.
#include <unistd.h>

#include "engine/diagnostics/report.hpp"
#include "engine/engine_impl.hpp"
#include "engine/windows/window.hpp"

namespace linkspan::engine {
namespace {

std::string line_of(const memory::Registry::RegionSummary& region) {
  const memory::Region::Facts& f = region.facts;
  std::string text = "region " + std::to_string(f.id.serial);
  if (!region.name.empty()) text += " " + quoted(region.name);
  text += ": " + std::string(name_of(f.kind)) + " memory, " + std::to_string(f.bytes) + " bytes";
  if (f.kind == MemoryKind::device) text += " of " + gpu_name(f.gpu);
  if (f.kind == MemoryKind::shared && region.pinned) text += ", pinned";
  text += ", peers may ";
  text += f.peers.read    ? (f.peers.write ? "read and write" : "read")
          : f.peers.write ? "write"
                          : "do nothing";
  if (f.peers.exclusive) text += " but not map";
  return text + ", " + std::to_string(region.users) + " transfers use it\n";
}

}  // namespace

std::string EngineImpl::dump() {
  std::string text = "engine " + quoted(identity_.engine) + " (pid " + std::to_string(::getpid()) +
                     "), open for " + age_of(base::Clock::steady().now() - opened_);
  const std::string listens = address();
  text += listens.empty() ? ", does not listen" : ", listens at " + listens;
  text += topology_ != nullptr ? ", sees " + std::to_string(topology_->devices().size()) + " GPUs"
                               : ", no GPU: " + no_gpu_.what();
  if (closed_) text += ", closed";
  text += "\n";
  std::vector<std::shared_ptr<void>> garbage;
  {
    const base::MutexLock lock(scheduler_.mutex);
    text += scheduler_.dump();
    garbage = scheduler_.extract_garbage();
  }
  garbage.clear();
  Listing listed("regions");
  const auto [regions, count] = registry_->list(Listing::kMax);
  for (std::size_t i = 0; i < count; ++i)
    if (listed.room()) text += line_of(regions[i]);
  text += listed.more();
  Listing windows("windows");
  const base::MutexLock lock(windows_->mutex);
  for (const auto& window : windows_->all)
    if (windows.room()) text += window->dump();
  return text + windows.more();
}

std::string EngineImpl::metrics() {
  EngineMetrics all;
  {
    const base::MutexLock lock(scheduler_.mutex);
    all = scheduler_.metrics();
  }
  all.regions = registry_->list(0).second;
  return metrics_text(all);
}

Result<std::string> EngineImpl::handle_query(control::IntrospectionOp op) {
  switch (op) {
    case control::IntrospectionOp::dump:
      return dump();
    case control::IntrospectionOp::metrics:
      return metrics();
    default:
      return Status(Code::unsupported, Scope::request,
                    "this release knows no question " + std::to_string(static_cast<unsigned>(op)) +
                        " of operators");
  }
}

Result<std::shared_ptr<ImportedRegion>> EngineImpl::counted(
    const PeerIdentity& peer, Result<std::shared_ptr<ImportedRegion>> region) {
  const base::MutexLock lock(scheduler_.mutex);
  scheduler_.count_import(peer.id, region.ok() ? *region : nullptr);
  return region;
}

/// Returns the log line of a new peer. Nothing was imported yet, so it names no path.
std::string EngineImpl::greeting(const control::Session& session) {
  std::string text = "peer " + std::to_string(session.id()) + " " + quoted(session.hello().engine) +
                     " (" + session.place() + ", incarnation " + hex_of(session.incarnation()) +
                     ") up";
  const base::MutexLock lock(scheduler_.mutex);
  const PeerRecord* peer = scheduler_.find_peer(session.id());
  bool any = false;
  for (std::size_t i = 0; peer != nullptr && i < transports_.size(); ++i) {
    if (peer->endpoints[i] == nullptr) continue;
    text.append(any ? "; " : " by ").append(transports_[i]->name());
    text += " (" + peer->endpoints[i]->describe_paths() + ")";
    any = true;
  }
  return any ? text : text + ", but no transport of ours reaches it";
}

}  // namespace linkspan::engine
