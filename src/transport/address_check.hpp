// transport/address_check.hpp - the check of a peer's address that all transports share.
//
// Threads: any thread.
#pragma once

#include <cstdint>

#include "transport/channel.hpp"

namespace linkspan::transport {

/// Returns `corrupt` if the address is of another Engine than the one that the Channel reaches.
inline Status check_address(const Channel& channel, std::uint64_t incarnation) {
  const std::uint64_t known = channel.process().incarnation;
  if (known == 0 || known == incarnation) return {};
  return {Code::corrupt, Scope::peer, "an address of another Engine"};
}

}  // namespace linkspan::transport
