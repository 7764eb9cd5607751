#include "engine/diagnostics/diagnostics.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/diagnostics/metrics.hpp"
#include "engine/diagnostics/report.hpp"

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

std::string Diagnostics::dump() const {
  const base::Time now = base::Clock::steady().now();
  std::string text = "engine " + quoted(uses_.context.identity.engine) + " (pid " +
                     std::to_string(::getpid()) + "), open for " + age_of(now - opened_);
  const std::string listens = uses_.manager.address();
  text += listens.empty() ? ", does not listen" : ", listens at " + listens;
  text += uses_.context.topology != nullptr
              ? ", sees " + std::to_string(uses_.context.topology->devices().size()) + " GPUs"
              : ", no GPU: " + uses_.context.no_gpu.what();
  if (uses_.closed) text += ", closed";
  text += "\n";
  Listing peers("peers");
  for (const auto& peer : uses_.peers.all())
    if (peers.room()) text += peer->line(now);
  text += peers.more() + transfers(now);
  uses_.pairs.clear();  // so that only transfers use regions
  Listing listed("regions");
  const auto [regions, count] = uses_.context.registry->list(Listing::kMax);
  for (std::size_t i = 0; i < count; ++i)
    if (listed.room()) text += line_of(regions[i]);
  return text + listed.more() + uses_.windows.dump() + uses_.captures.dump();
}

/// Describes the oldest transfers of all peers.
std::string Diagnostics::transfers(base::Time now) const {
  std::vector<std::pair<std::uint64_t, std::shared_ptr<PeerScheduler>>> oldest;
  std::size_t count = 0;
  for (const auto& peer : uses_.peers.all()) {
    const auto [ids, all] = peer->oldest(Listing::kMax);
    for (const std::uint64_t id : ids) oldest.emplace_back(id, peer);
    count += all;
  }
  std::ranges::sort(oldest, {}, [](const auto& each) { return each.first; });
  Listing listed("transfers");
  std::string text;
  for (std::size_t i = 0; i < count; ++i)
    if (listed.room() && i < oldest.size()) text += oldest[i].second->line_of(oldest[i].first, now);
  return text + listed.more();
}

std::string Diagnostics::metrics() const {
  EngineMetrics all;
  all.engine = uses_.context.identity.engine;
  all.pid = std::to_string(::getpid());
  all.incarnation = hex_of(uses_.context.identity.incarnation);
  PeerMetrics rest{.id = "gone", .name = {}, .counters = uses_.peers.forgotten()};
  std::uint64_t received = 0;  // by the peers that are listed
  for (const auto& peer : uses_.peers.all()) {
    PeerMetrics metrics = peer->metrics();
    if (metrics.up) ++all.peers_up;
    if (all.peers.size() < EngineMetrics::kPeers) {
      metrics.counters.notifications_received = uses_.inbox.received(peer->id());
      received += metrics.counters.notifications_received;
      all.peers.push_back(std::move(metrics));
      continue;
    }
    rest.id = "others";
    rest.outstanding += metrics.outstanding;
    rest.queued += metrics.queued;
    rest.counters.add(metrics.counters);
  }
  const std::uint64_t total = uses_.inbox.received();
  rest.counters.notifications_received = total - std::min(total, received);
  all.peers.push_back(std::move(rest));
  for (const auto& transport : uses_.context.transports)
    for (const transport::CopyCount& each : transport->copies()) all.copies.push_back(each);
  all.regions = uses_.context.registry->list(0).second;
  return metrics_text(all);
}

Result<std::string> Diagnostics::answer(control::IntrospectionOp op) const {
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

}  // namespace linkspan::engine
