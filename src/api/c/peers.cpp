// linkspan.h: peers and their regions.
#include <span>

#include "api/c/handles.hpp"

using namespace linkspan;  // NOLINT(google-build-using-namespace): the functions of C are in none

void linkspan_peer_free(linkspan_peer* peer) { delete peer; }
void linkspan_remote_region_free(linkspan_remote_region* region) { delete region; }
void linkspan_region_set_free(linkspan_region_set* set) { delete set; }

uint64_t linkspan_remote_region_bytes(const linkspan_remote_region* region) {
  return region == nullptr ? 0 : region->is.bytes();
}
int linkspan_remote_region_kind(const linkspan_remote_region* region) {
  return region == nullptr ? LINKSPAN_MEMORY_HOST : static_cast<int>(region->is.kind());
}
uint64_t linkspan_remote_region_peer(const linkspan_remote_region* region) {
  return region == nullptr ? 0 : region->is.peer();
}
int linkspan_remote_region_name(const linkspan_remote_region* region, char** text) {
  return c::give_text(region, text, [](const RemoteRegion& is) { return is.name(); });
}

uint64_t linkspan_peer_id(const linkspan_peer* peer) { return peer == nullptr ? 0 : peer->is.id(); }
int linkspan_peer_state(const linkspan_peer* peer) {
  return peer == nullptr ? LINKSPAN_PEER_GONE : static_cast<int>(peer->is.state());
}
int linkspan_peer_name(const linkspan_peer* peer, char** text) {
  return c::give_text(peer, text, [](const Peer& is) { return is.name(); });
}

int linkspan_peer_close(const linkspan_peer* peer, int64_t timeout) {
  return c::run({{peer, "peer"}}, {"timeout", timeout},
                [&](Duration limit) { return peer->is.close(limit); });
}

int linkspan_peer_lookup(const linkspan_peer* peer, const char* name, int64_t timeout,
                         linkspan_remote_region** region) {
  return c::make(region, {{peer, "peer"}, {name, "name"}}, {"timeout", timeout},
                 [&](Duration limit) { return peer->is.lookup(name, limit); });
}

int linkspan_peer_lookup_set(const linkspan_peer* peer, const char* name, int64_t timeout,
                             linkspan_region_set** set) {
  return c::make(set, {{peer, "peer"}, {name, "name"}}, {"timeout", timeout},
                 [&](Duration limit) { return peer->is.lookup_set(name, limit); });
}

int linkspan_peer_lookup_all(const linkspan_peer* peer, const char* const* names, size_t count,
                             int64_t timeout, linkspan_region_set** set) {
  return c::make(set, {{peer, "peer"}, {names, "names"}}, {"timeout", timeout},
                 [&](Duration limit) -> Result<RegionSet> {
                   std::vector<std::string> all;
                   for (const char* each : std::span(names, count)) {
                     if (Status status = c::given({{each, "a name"}}); !status.ok()) return status;
                     all.emplace_back(each);
                   }
                   auto regions = peer->is.lookup_all(all, limit);
                   if (!regions.ok()) return regions.status();
                   return RegionSet{.version = 0, .regions = *std::move(regions)};
                 });
}

int linkspan_peer_update_set(const linkspan_peer* peer, const char* name,
                             const linkspan_region_set* known, int64_t timeout,
                             linkspan_region_set** set) {
  return c::make(set, {{peer, "peer"}, {name, "name"}, {known, "known"}}, {"timeout", timeout},
                 [&](Duration limit) { return peer->is.lookup_set(name, limit, known->is); });
}

int linkspan_peer_await_version(const linkspan_peer* peer, const char* name, uint64_t above,
                                int64_t timeout, uint64_t* version) {
  return c::run({{peer, "peer"}, {name, "name"}}, {"timeout", timeout}, [&](Duration limit) {
    const auto found = peer->is.await_version(name, above, limit);
    if (found.ok() && version != nullptr) *version = *found;
    return found.status();
  });
}

int linkspan_peer_notify(const linkspan_peer* peer, const void* message, size_t bytes) {
  return c::run({{peer, "peer"}}, [&] {
    if (message == nullptr && bytes != 0)
      return c::bad("a notification of " + std::to_string(bytes) + " bytes at null");
    return peer->is.notify({static_cast<const std::byte*>(message), bytes});
  });
}

uint64_t linkspan_region_set_version(const linkspan_region_set* set) {
  return set == nullptr ? 0 : set->is.version;
}
size_t linkspan_region_set_count(const linkspan_region_set* set) {
  return set == nullptr ? 0 : set->is.regions.size();
}
int linkspan_region_set_at(const linkspan_region_set* set, size_t index,
                           linkspan_remote_region** region) {
  return c::make(region, {{set, "set"}}, [&]() -> Result<RemoteRegion> {
    const std::size_t count = set->is.regions.size();
    if (index >= count)
      return c::bad("region " + std::to_string(index) + " of " + std::to_string(count));
    return set->is.regions[index];
  });
}
