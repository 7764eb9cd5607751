// engine/keys.hpp - what peers get to reach a region: its keys, asked of every transport at
// registration and sent as a Descriptor whenever a peer imports it.
//
// Off the path of a byte.
// Threads: any thread. publish_everywhere() takes milliseconds at the first region of a GPU.
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

/// By the transports' order; none: that one cannot reach the region.
using Keys = std::vector<std::optional<memory::PublishedKey>>;

/// What a transport answers of memory that is not for it, where another may take it. Any other
/// error is one: to go on by another transport would be to fall back in silence.
bool is_declined(const Status& status) noexcept;
/// The region is good if one transport gave a key, and what others answered is_declined(); else
/// the first refusal, and nothing is kept.
Result<std::shared_ptr<const Keys>> publish_everywhere(const Transports& transports,
                                                       const memory::Region& region);
/// The same by those transports alone that leave the host; unsupported: there is none.
Result<std::shared_ptr<const Keys>> publish_to_networks(const Transports& transports,
                                                        const memory::Region& region);
/// OK: no peer maps it any more. busy: ask again. `immediately` as Transport::retract().
Status retract_everywhere(const Transports& transports, const memory::Region& region,
                          bool immediately);

/// A remote peer is reached by what leaves the host alone.
bool reaches(const transport::Transport& transport, bool remote) noexcept;

/// The Descriptor and duplicates of the keys' fds. For a remote peer only the keys of transports
/// that reach it, and no fd; unreachable: there is none, the text names whose keys there are.
Result<control::ExportedRegion> export_region(const Transports& transports, const memory::Region& region,
                                         const Keys& keys, std::string_view name, bool remote);

}  // namespace linkspan::engine
