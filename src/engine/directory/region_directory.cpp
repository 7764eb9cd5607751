#include "engine/directory/region_directory.hpp"

#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "engine/diagnostics/report.hpp"
#include "engine/handle_access.hpp"

namespace linkspan::engine {

Status RegionDirectory::publish(std::string_view name, const Region& region) {
  if (!region.valid() || name.empty())
    return {Code::invalid_argument, Scope::request, "publish needs a region and a name"};
  Status status = registry_.set_name(HandleAccess::registration(region)->id(), name);
  if (status.ok()) notify_waiters(name);
  return status;
}

Result<std::uint64_t> RegionDirectory::publish(std::string_view name,
                                               std::span<const Region> regions) {
  std::vector<memory::RegionId> ids;
  for (const Region& region : regions) {
    if (!region.valid())
      return Status(Code::invalid_argument, Scope::request,
                    "number " + std::to_string(ids.size()) + " of the set is no region");
    ids.push_back(HandleAccess::registration(region)->id());
  }
  auto version = registry_.publish(name, ids);
  if (version.ok()) notify_waiters(name);
  return version;
}

Result<Descriptor> RegionDirectory::describe(std::string_view name, std::string address,
                                             std::string engine) const {
  auto published = registry_.describe(name);
  if (!published.ok()) return published.status();
  if (address.empty())
    return Status(Code::invalid_argument, Scope::request,
                  "no process can connect to the Engine of " + quoted(name) + ": listen() first");
  Descriptor described{.address = std::move(address),
                       .engine = std::move(engine),
                       .name = std::string(name),
                       .version = published->version,
                       .regions = {}};
  for (const auto& each : published->regions) {
    const memory::Region::Facts& facts = each->region().facts();
    described.regions.push_back({facts.bytes, facts.kind});
  }
  return described;
}

void RegionDirectory::on_request(control::Session& session, std::uint64_t request,
                                 control::AskSet ask) {
  using control::FrameOp;
  const std::uint64_t peer = session.id();
  std::optional<memory::PublishedSet> set;
  Status refused;
  {
    const base::MutexLock lock(mutex_);
    waits_.erase({peer, request});
    if (ask.name.empty()) return;
    set = registry_.find_set(ask.name);
    if (ask.waits && !(set && set->version > ask.above)) {
      const auto waiting = std::distance(waits_.lower_bound({peer, 0}),
                                         waits_.upper_bound({peer, ~std::uint64_t{0}}));
      if (static_cast<std::size_t>(waiting) < kMaxWaits) {
        waits_.emplace(std::pair(peer, request), std::move(ask));
        return;
      }
      refused = Status(Code::no_resource, Scope::request,
                       std::to_string(waiting) + " of yours wait here for a version: at most that");
    } else if (!set) {
      refused =
          Status(Code::not_found, Scope::request, "no region is published as " + quoted(ask.name));
    }
  }
  // If the send queue is full the reply is dropped, and the requester times out at its own
  // deadline.
  (void)(refused.ok() ? session.send(FrameOp::set, request, control::encode_set(*set))
                      : session.send(FrameOp::error, request, control::encode_error(refused)));
}

void RegionDirectory::notify_waiters(std::string_view name) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> waiters;
  std::optional<memory::PublishedSet> set;
  {
    const base::MutexLock lock(mutex_);
    set = registry_.find_set(name);
    if (!set) return;
    std::erase_if(waits_, [&](const auto& wait) {
      const bool ready = wait.second.name == name && set->version > wait.second.above;
      if (ready) waiters.push_back(wait.first);
      return ready;
    });
  }
  for (const auto& [peer, request] : waiters) {
    const auto session = peers_.session_of(peer);
    if (session == nullptr) continue;
    (void)session->send(control::FrameOp::set, request, control::encode_set(*set));
  }
}

void RegionDirectory::forget_peer(std::uint64_t peer) {
  const base::MutexLock lock(mutex_);
  std::erase_if(waits_, [&](const auto& wait) { return wait.first.first == peer; });
}

}  // namespace linkspan::engine
