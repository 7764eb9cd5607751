// memory/descriptor.hpp - what a Region publishes: its name, its size, the rights of peers, and one
// key for each transport.
//
// The owner encodes it after every transport has published its key; a peer decodes it and gives
// each key to the transport of that name. The fds of a key go with it over the Unix socket. A key
// marked `bearer` gives access to the memory by itself, so it is left out of anything that is
// stored. Off the path of a byte: at publication and import.
// Threads: values.
// Invariants: the result of decode() is within the limits below; the claims of its keys are not yet
// verified.
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
    std::uint32_t fd_count = 0;  ///< Number of fds that go with it.
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

/// The regions that a name stands for: of one owner, by serial, published together.
struct PublishedSet {
  std::uint64_t version = 0;
  std::vector<std::uint64_t> serials;
  bool single = false;  ///< Published as one region and not as a set. Peers are not told.
};

/// Returns the descriptor in its wire format.
std::vector<std::byte> encode(const Descriptor& descriptor);
/// Decodes bytes of a peer, at any alignment. corrupt: not a descriptor, or beyond a limit.
Result<Descriptor> decode(std::span<const std::byte> bytes);

}  // namespace linkspan::memory
