// transport/local/key.hpp - keys of regions and addresses of Engines, encoded and decoded.
//
// Off the path of a byte. The bytes come from a peer: decode functions verify their form, the
// importer measures what they claim.
// Threads: values.
// Invariants: a decoded key has an identity and at most one of ipc, has_memfd, chunks and pool.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/process.hpp"
#include "cuda/handles.hpp"
#include "cuda/shared_range.hpp"
#include "memory/region.hpp"

namespace linkspan::transport::local {

/// The decoded key of a region.
struct LocalKey {
  memory::RegionId id;
  base::ProcessIdentity process;     ///< The owner's process.
  std::uint32_t liveness_index = 0;  ///< In the owner's RegionLivenessTable.
  MemoryKind kind = MemoryKind::host;
  Permissions peers;
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;  ///< In the owner's process. 0: not reachable by address.
  GpuUuid gpu{};
  std::uint64_t allocation_offset = 0;
  std::optional<cuda::IpcHandle> ipc;
  bool has_memfd = false;
  /// Consecutive chunks of virtual memory, whose fds come in an FdBundle.
  struct Chunks {
    std::uint32_t count = 0;
    std::uint64_t bytes = 0;  ///< The sum of the chunks.
    std::uint64_t id = 0;     ///< Equal for the same chunks.
  };
  std::optional<Chunks> chunks;
  std::optional<cuda::PoolPointer> pool;  ///< A pool allocation; the pool's fd comes with the key.
  std::string why_not_mapped;             ///< The owner's reason if none of these is set.

  bool mappable() const noexcept { return ipc || has_memfd || chunks || pool; }
  /// Returns true if a second fd follows that of the liveness table.
  bool has_fd() const noexcept { return has_memfd || chunks || pool; }
};

std::vector<std::byte> encode(const LocalKey& key);
/// Decodes a peer's bytes; malformed ones are `corrupt`.
Result<LocalKey> decode_key(std::span<const std::byte> bytes);

/// The decoded address of an Engine.
struct LocalAddress {
  std::uint64_t incarnation = 0;
  base::ProcessIdentity process;
  std::uint64_t proof_address = 0;
  std::array<std::byte, 16> proof{};
};

std::vector<std::byte> encode(const LocalAddress& address);
/// Decodes a peer's bytes; malformed ones are `corrupt`.
Result<LocalAddress> decode_address(std::span<const std::byte> bytes);

}  // namespace linkspan::transport::local
