// transport/tcp/address.hpp - what travels about an Engine, decoded.
//
// The bytes come from a peer: decode_address() verifies their form.
// Threads: values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "linkspan/status.hpp"

namespace linkspan::transport::tcp {

inline constexpr unsigned kMaxDataConnections = 64;

struct Address {
  std::uint64_t incarnation = 0;
  unsigned connections = 1;  ///< 1 to kMaxDataConnections: that it wants at most.
  std::uint32_t chunk = 0;   ///< Data of a frame that it takes, kMinChunk at least.
  bool ordered = false;      ///< Takes a put's Head::after, which older releases do not.
};

std::vector<std::byte> encode(const Address& address);
Result<Address> decode_address(std::span<const std::byte> bytes);  ///< Else `corrupt`.

}  // namespace linkspan::transport::tcp
