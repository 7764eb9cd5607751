// transport/tcp/address.hpp - what the handshake says about an Engine's tcp transport, decoded.
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

struct TcpTransportAddress {
  std::uint64_t incarnation = 0;
  unsigned connections = 1;  ///< Connections that it wants, 1 to kMaxDataConnections.
  std::uint32_t chunk = 0;   ///< Data bytes of a frame that it accepts, at least kMinChunk.
  bool ordered = false;      ///< Understands Head::after of a put; older releases do not.
};

std::vector<std::byte> encode(const TcpTransportAddress& address);
Result<TcpTransportAddress> decode_address(
    std::span<const std::byte> bytes);  ///< Returns `corrupt` for malformed bytes.

}  // namespace linkspan::transport::tcp
