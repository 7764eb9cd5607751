// transport/verbs/gid.hpp - chooses the GID by which peers reach a port.
//
// Not on the path of a byte.
// Threads: pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "transport/verbs/abi_types.hpp"

namespace linkspan::transport::verbs {

/// Returns the entry to use, or null if no entry fits. Ethernet: RoCE v2 before v1, of those an
/// IPv4-mapped address first, then an IPv6 address that is routed, then a link-local one; of equal
/// ones the first. InfiniBand: the first in use.
const IbvGidEntry* choose_gid(std::span<const IbvGidEntry> entries, IbvLinkLayer link) noexcept;

bool is_ipv4_mapped(const IbvGid& gid) noexcept;
bool is_unused(const IbvGid& gid) noexcept;

/// Returns "10.0.0.1" for an IPv4-mapped GID, else groups of hexadecimal digits.
std::string to_string(const IbvGid& gid);

}  // namespace linkspan::transport::verbs
