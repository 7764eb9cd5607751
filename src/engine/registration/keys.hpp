// engine/registration/keys.hpp - the keys by which peers reach a region.
//
// Every transport is asked for a key at registration; the keys are sent as a Descriptor when a peer
// imports the region. Off the path of a byte.
// Threads: any thread. publish_everywhere() takes milliseconds at the first region of a GPU.
// Invariants: a region is published by at least one transport, or by none and an error is returned.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "control/session.hpp"
#include "memory/registry.hpp"
#include "transport/transport.hpp"

namespace linkspan::engine {

using Transports = std::vector<std::unique_ptr<transport::Transport>>;

/// Keys in the order of the transports; nullopt if that transport cannot reach the region.
using Keys = std::vector<std::optional<memory::PublishedKey>>;

/// Returns true if the transport declined this memory and the next transport may be tried. Any
/// other error must be reported; continuing would be a silent fallback.
bool is_declined(const Status& status) noexcept;
/// Asks every transport for a key. OK if one gave a key and the others declined; else returns the
/// first error and publishes nothing.
Result<std::shared_ptr<const Keys>> publish_everywhere(const Transports& transports,
                                                       const memory::Region& region);
/// Does the same with the transports that leave the host. unsupported: none does.
Result<std::shared_ptr<const Keys>> publish_to_networks(const Transports& transports,
                                                        const memory::Region& region);
/// Retracts the region's keys. OK: no peer maps it any more. busy: call again. `immediately` as in
/// Transport::retract().
Status retract_everywhere(const Transports& transports, const memory::Region& region,
                          bool immediately);

/// Returns whether the transport reaches a peer; a remote peer only if it leaves the host.
bool reaches(const transport::Transport& transport, bool remote) noexcept;

/// Returns the Descriptor and duplicates of the keys' fds. A remote peer gets only keys of
/// transports that reach it, and no fd. unreachable: there is no such key; the text names the
/// transports that have keys.
Result<control::ExportedRegion> export_region(const Transports& transports,
                                              const memory::Region& region, const Keys& keys,
                                              std::string_view name, bool remote);

}  // namespace linkspan::engine
