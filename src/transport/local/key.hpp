// transport/local/key.hpp - what travels about a region and about an Engine, decoded.
//
// The bytes come from a peer: decode() verifies their form, the importer measures what they claim.
// Threads: values.
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

struct LocalKey {
  memory::RegionId id;
  base::ProcessIdentity process;  ///< The owner's.
  std::uint32_t liveness_index = 0;
  MemoryKind kind = MemoryKind::host;
  Permissions peers;
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;  ///< In its owner. 0: not to be reached by address.
  GpuUuid gpu{};
  std::uint64_t allocation_offset = 0;
  std::optional<cuda::IpcHandle> ipc;
  bool has_memfd = false;
  /// Chunks of virtual memory in a row, whose fds come in a parcel.
  struct Chunks {
    std::uint32_t count = 0;
    std::uint64_t bytes = 0;  ///< Of all of them.
    std::uint64_t id = 0;     ///< The same chunks, the same number.
  };
  std::optional<Chunks> chunks;
  std::optional<cuda::PoolPointer> pool;  ///< An allocation of a pool, whose fd comes beside it.
  std::string why_not_mapped;             ///< The owner's words when there is nothing of these.

  bool mappable() const noexcept { return ipc || has_memfd || chunks || pool; }
  /// Behind the fd of the liveness.
  bool has_fd() const noexcept { return has_memfd || chunks || pool; }
};

std::vector<std::byte> encode(const LocalKey& key);
Result<LocalKey> decode_key(std::span<const std::byte> bytes);  ///< Else `corrupt`.

struct LocalAddress {
  std::uint64_t incarnation = 0;
  base::ProcessIdentity process;
  std::uint64_t proof_address = 0;
  std::array<std::byte, 16> proof{};
};

std::vector<std::byte> encode(const LocalAddress& address);
Result<LocalAddress> decode_address(std::span<const std::byte> bytes);  ///< Else `corrupt`.

}  // namespace linkspan::transport::local
