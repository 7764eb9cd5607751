// transport/nccl_net/key.hpp - what travels about a region and about an Engine, decoded.
//
// The bytes come from a peer: decode_*() verifies their form. What a key claims counts for nothing
// at its owner, who looks the token up and asks its own table.
// Threads: values.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "linkspan/status.hpp"
#include "memory/region.hpp"

namespace linkspan::transport::nccl_net {

using Token = std::array<std::byte, 16>;

struct Key {
  memory::RegionId id;
  MemoryKind kind = MemoryKind::host;
  Permissions peers;
  std::uint64_t bytes = 0;
  GpuUuid gpu{};  ///< Zero: host memory.
  Token token{};
};

std::vector<std::byte> encode(const Key& key);
Result<Key> decode_key(std::span<const std::byte> bytes);  ///< Else `corrupt`.

struct Address {
  std::uint64_t incarnation = 0;
  std::uint64_t most = 0;  ///< Bytes of a message, kLeastMessage at least.
  std::string plugin;      ///< For people.
};

/// Smaller ones would make a list of messages out of hand.
inline constexpr std::uint64_t kLeastMessage = 4096;

std::vector<std::byte> encode(const Address& address);
Result<Address> decode_address(std::span<const std::byte> bytes);  ///< Else `corrupt`.

}  // namespace linkspan::transport::nccl_net
