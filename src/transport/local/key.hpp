// transport/local/key.hpp - keys of regions and addresses of Engines, encoded and decoded.
//
// Off the path of a byte. The bytes come from a peer: decode functions verify their form, the
// importer measures what they claim.
// Threads: values.
// Invariants: a decoded key has an identity and at most one kind of handle.
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

/// Consecutive chunks of virtual memory, whose fds come in an FdBundle.
struct SharedChunks {
  std::uint32_t count = 0;
  std::uint64_t bytes = 0;  ///< The sum of the chunks.
  std::uint64_t id = 0;     ///< Equal for the same chunks.
};

/// How another process maps an allocation.
struct ShareableHandle {
  std::optional<cuda::IpcHandle> ipc;
  bool memfd = false;
  std::optional<SharedChunks> chunks;
  std::optional<cuda::PoolPointer> pool;  ///< A pool allocation; the pool's fd comes with the key.
  std::string why_none;                   ///< The owner's reason if none of these is set.

  int kinds() const noexcept {
    return int{ipc.has_value()} + int{memfd} + int{chunks.has_value()} + int{pool.has_value()};
  }
  bool mappable() const noexcept { return kinds() != 0; }
  /// Returns true if a second fd follows that of the liveness table.
  bool has_fd() const noexcept { return memfd || chunks || pool; }
};

/// The decoded key of a region.
struct LocalKey {
  memory::RegionId id;
  base::ProcessIdentity process;     ///< The owner's process.
  std::uint32_t liveness_index = 0;  ///< In the owner's RegionLivenessTable.
  MemoryKind kind = MemoryKind::host;
  Permissions peers;
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;  ///< In the owner's process. 0: not reachable by address.
  bool anonymous = false;     ///< memory::PageSource::kernel.
  GpuUuid gpu{};
  std::uint64_t allocation_offset = 0;
  ShareableHandle handle;
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
