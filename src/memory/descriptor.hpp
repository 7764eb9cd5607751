// memory/descriptor.hpp - what a Region publishes: its name, its size, who may do what, and one key
// per way of reaching it.
//
// The owner encodes it after every transport has published its key; a peer decodes it and hands
// each key to the transport of that name. The fds of a key travel beside it, over the Unix socket.
// A key marked `bearer` is as good as the memory: it stays out of anything that is stored.
// Threads: values.
// Invariants: what decode() returns keeps the limits below; what its keys claim is not yet true.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"
#include "memory/region.hpp"

namespace linkspan::memory {

inline constexpr std::size_t kMaxNameBytes = 256;
inline constexpr std::size_t kMaxKeys = 16;
inline constexpr std::size_t kMaxKeyBytes = 4096;
inline constexpr std::size_t kMaxSet = 1024;

struct Descriptor {
  struct TransportKey {
    std::string transport;
    std::vector<std::byte> bytes;
    std::uint32_t fd_count = 0;  ///< How many fds came, or will come, with it.
    bool bearer = false;
  };

  std::string name;
  RegionId id;
  MemoryKind kind = MemoryKind::host;
  Permissions peers;
  GpuUuid gpu{};
  std::uint64_t bytes = 0;
  std::vector<TransportKey> keys;
};

/// What a name stands for: regions of one owner by their serials, as they were published together.
struct PublishedSet {
  std::uint64_t version = 0;
  std::vector<std::uint64_t> serials;
};

std::vector<std::byte> encode(const Descriptor& descriptor);
/// For bytes of a peer, at any alignment. corrupt: not a descriptor, or beyond a limit.
Result<Descriptor> decode(std::span<const std::byte> bytes);

}  // namespace linkspan::memory
