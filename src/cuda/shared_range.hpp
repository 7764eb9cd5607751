// cuda/shared_range.hpp - exports and maps GPU memory that has no legacy IPC handle: chunks of
// virtual memory, and allocations of stream-ordered pools.
//
// Both go as file descriptors, over the authenticated Unix socket. A chunk is one allocation of
// cuMemCreate; a range that looks like one allocation may be several chunks in a row. Each chunk is
// exported by itself and mapped after the one before it. A pool is exported once, with 64 bytes for
// each allocation, which are useless without the pool. Exports are made for each import and closed
// at once, because an open fd or handle keeps the memory from being freed.
// Off the path of a byte: at registration and import (docs/memory.md).
// Threads: any thread, but for the functions that make a SharedRange, before it is shared.
// Invariants: nothing in flight uses a SharedRange when it ends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/fd.hpp"
#include "cuda/topology.hpp"

namespace linkspan::cuda {

/// Exports the chunk that contains the address (fact:
/// Chunks.AnInteriorAddressFindsItsChunkAndSharesIt). `unsupported`, with the remedy: it was made
/// without that handle type. Does not wait for what is in flight (fact:
/// Chunks.SharingBesideAHeldStream).
Result<base::Fd> export_chunk(const Device& device, std::uint64_t address);

using PoolPointer = std::array<std::byte, 64>;
/// Exports the pool of the allocation at `base`, and the allocation in it. `unsupported`, with the
/// remedy: the pool has not that handle type.
Result<base::Fd> export_pool(const Device& device, std::uint64_t base);
Result<PoolPointer> export_pool_pointer(const Device& device, std::uint64_t base);

/// Lets a GPU access chunks and pools of this very process, which by default only their own GPU may
/// (fact: Chunks.AnotherGpuCopiesFromThemWithAccessOnly). OK for memory of any other kind.
Status allow_own(const Topology& topology, const Device& device, std::uint64_t address,
                 std::uint64_t bytes);

/// A peer's memory, mapped here as one range of any number of chunks. Stays valid when the peer
/// dies or unmaps its own (fact: Chunks.AMappingOutlivesItsExporter). The destructor unmaps it.
class SharedRange {
 public:
  /// Reserves addresses for `bytes` bytes of chunks; add() maps the next one.
  static Result<std::unique_ptr<SharedRange>> reserve(const Device& device, std::uint64_t bytes);
  /// Maps the next chunk. `corrupt`: more than was reserved. An error of the driver: not a chunk,
  /// or a smaller one (fact: Chunks.AMappingBeyondItsChunkIsRefused).
  Status add(const base::Fd& chunk, std::uint64_t bytes);
  /// Maps an allocation of a pool.
  static Result<std::unique_ptr<SharedRange>> open(const Device& device, const base::Fd& pool,
                                                   const PoolPointer& pointer);
  SharedRange(const SharedRange&) = delete;
  SharedRange& operator=(const SharedRange&) = delete;
  ~SharedRange();

  /// Lets copies and kernels of `device` access the range from now on.
  Status allow(const Device& device);
  std::uint64_t base() const noexcept { return base_; }
  /// Returns the mapped size: measured, never what the peer claims.
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  explicit SharedRange(const Device& device) noexcept : device_(device) {}
  void end_import();

  const Device& device_;         // its context is used for driver calls
  CUmemoryPool pool_ = nullptr;  // null: a range of chunks
  std::uint64_t base_ = 0, bytes_ = 0, reserved_ = 0;
};

}  // namespace linkspan::cuda
