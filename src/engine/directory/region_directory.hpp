// engine/directory/region_directory.hpp - the names under which this side publishes regions, and
// the peers that wait for a version of a set.
//
// A reader that asks for a set gets the serials of one version and imports each region by its
// serial. A serial never names another region, so the reader gets that version, or an error and
// then the next version.
// Off the path of a byte.
// Threads: any thread; on_request() and forget_peer() the Control thread.
// Invariants: a request that waits is answered by the first version that it asks for.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/mutex.hpp"
#include "control/session.hpp"
#include "engine/peers/peer_table.hpp"
#include "linkspan/descriptor.hpp"
#include "memory/registry.hpp"

namespace linkspan::engine {

class RegionDirectory {
 public:
  /// Bounds the requests of one peer that wait for a version of a set.
  static constexpr std::size_t kMaxWaits = 64;

  /// The arguments outlive this object.
  RegionDirectory(memory::Registry& registry, const PeerTable& peers)
      : registry_(registry), peers_(peers) {}

  Status publish(std::string_view name, const Region& region) LINKSPAN_EXCLUDES(mutex_);
  /// Publishes a set and returns its version.
  Result<std::uint64_t> publish(std::string_view name, std::span<const Region> regions)
      LINKSPAN_EXCLUDES(mutex_);
  /// Describes what the name stands for, at these addresses of the Engine of that name.
  /// invalid_argument: no address. not_found.
  Result<Descriptor> describe(std::string_view name, std::string address, std::string engine) const;
  /// Answers a request for a set, at once or when the version that it waits for is published.
  void on_request(control::Session& session, std::uint64_t request, control::AskSet ask)
      LINKSPAN_EXCLUDES(mutex_);
  void forget_peer(std::uint64_t peer) LINKSPAN_EXCLUDES(mutex_);

 private:
  void notify_waiters(std::string_view name) LINKSPAN_EXCLUDES(mutex_);

  memory::Registry& registry_;
  const PeerTable& peers_;
  base::Mutex mutex_;  // no set is published between find_set() and the entry of a wait
  // Requests that wait for a version of a set, by peer and request.
  std::map<std::pair<std::uint64_t, std::uint64_t>, control::AskSet> waits_
      LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::engine
