// transport/nccl_net/address.hpp - what the handshake says about an Engine's nccl_net transport,
// decoded.
//
// The bytes come from a peer: decode_address() verifies their form.
// Threads: values.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "linkspan/status.hpp"

namespace linkspan::transport::nccl_net {

struct NcclNetAddress {
  std::uint64_t incarnation = 0;
  std::uint64_t max_message = 0;  ///< Bytes of a message, at most; at least kMinMessage.
  std::string plugin;             ///< For people.
};

/// Bounds the number of messages of a batch.
inline constexpr std::uint64_t kMinMessage = 4096;

std::vector<std::byte> encode(const NcclNetAddress& address);
Result<NcclNetAddress> decode_address(
    std::span<const std::byte> bytes);  ///< Returns `corrupt` for malformed bytes.

}  // namespace linkspan::transport::nccl_net
