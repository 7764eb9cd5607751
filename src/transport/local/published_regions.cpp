#include "transport/local/published_regions.hpp"

#include "transport/local/endpoint.hpp"
#include "transport/local/exports.hpp"

namespace linkspan::transport::local {
namespace {

Status not_published() { return {Code::not_found, Scope::request, "the region is not published"}; }

}  // namespace

memory::PublishedKey PublishedRegion::published_key(const cuda::Topology* topology) const {
  memory::PublishedKey out;
  out.bytes = encode(key);
  out.fds.push_back(liveness_fd);
  if (key.handle.memfd) out.fds.push_back(region->facts().memfd);
  if (key.handle.chunks || key.handle.pool)
    out.last_fd = [topology, kept = shared_from_this()] {
      return export_fd(*topology, kept->region->facts(), kept->key);
    };
  out.bearer = key.handle.ipc.has_value();
  return out;
}

Result<memory::PublishedKey> PublishedRegions::add(std::shared_ptr<PublishedRegion> region,
                                                   const cuda::Topology* topology) {
  const std::uint64_t serial = region->key.id.serial;
  auto index = liveness_->grant(serial);
  if (!index.ok()) return index.status();
  region->key.liveness_index = *index;
  region->liveness_fd = liveness_->fd();
  auto key = region->published_key(topology);  // may throw, and nothing is published yet
  PublishedEntry entry;
  entry.published = std::move(region);
  entries_[serial] = std::move(entry);
  return key;
}

std::shared_ptr<PublishedRegion> PublishedRegions::find(std::uint64_t serial) const {
  const auto found = entries_.find(serial);
  return found == entries_.end() || found->second.retracting ? nullptr : found->second.published;
}

Status PublishedRegions::retract(std::uint64_t serial, bool revoke_immediately,
                                 const Endpoints& peers) {
  const auto found = entries_.find(serial);
  if (found == entries_.end()) return not_published();
  PublishedEntry& entry = found->second;
  if (!entry.told) {  // again, where there was no memory
    entry.unacknowledged = {peers.begin(), peers.end()};
    if (!std::exchange(entry.retracting, true))
      liveness_->revoke(entry.published->key.liveness_index);
    entry.revoke_immediately |= revoke_immediately;
    for (LocalEndpoint* endpoint : peers)
      // Only this side touches an exclusive region, and it counts the `uses`.
      if (!endpoint->queue_retract(serial, entry.revoke_immediately) ||
          entry.published->key.peers.exclusive)
        entry.unacknowledged.erase(endpoint);
    entry.told = true;
  } else if (revoke_immediately && !entry.revoke_immediately) {
    for (LocalEndpoint* endpoint : peers)
      if (entry.unacknowledged.contains(endpoint)) (void)endpoint->queue_retract(serial, true);
    entry.revoke_immediately = true;
  }
  if (entry.unacknowledged.empty()) return erase_unused(found);
  std::string names;
  for (const LocalEndpoint* endpoint : entry.unacknowledged)
    names += (names.empty() ? "" : ", ") + endpoint->peer_name();
  return {Code::busy, Scope::request, "still mapped by " + names};
}

Status PublishedRegions::forget(std::uint64_t serial) {
  const auto found = entries_.find(serial);
  if (found == entries_.end()) return not_published();
  PublishedEntry& entry = found->second;
  if (!std::exchange(entry.retracting, true))
    liveness_->revoke(entry.published->key.liveness_index);
  return erase_unused(found);
}

Status PublishedRegions::erase_unused(std::map<std::uint64_t, PublishedEntry>::iterator entry) {
  if (entry->second.published->uses != 0)
    return {Code::busy, Scope::request, "a transfer for a peer still uses the region"};
  entries_.erase(entry);
  return {};
}

void PublishedRegions::acknowledge(const LocalEndpoint& peer, std::uint64_t serial) {
  const auto begin = serial == 0 ? entries_.begin() : entries_.find(serial);
  const auto end = serial == 0 || begin == entries_.end() ? entries_.end() : std::next(begin);
  for (auto each = begin; each != end; ++each) each->second.unacknowledged.erase(&peer);
}

}  // namespace linkspan::transport::local
