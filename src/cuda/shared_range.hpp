// cuda/shared_range.hpp - lends and maps GPU memory that has no legacy IPC handle: chunks of
// virtual memory, and allocations of stream-ordered pools.
//
// Both travel as file descriptors, over the authenticated Unix socket. A chunk is one allocation of
// cuMemCreate, and a range that looks like one piece may be a row of them: each is exported by
// itself, and mapped behind the one before it. A pool is exported once, and beside it 64 bytes for
// each allocation, which are worth nothing without it. Neither is kept: an fd or a handle that is
// open keeps the memory from being freed, so they are made for each import and closed at once.
// Off the path of a byte: at registration and import (docs/memory.md).
// Threads: any thread, but for what makes a SharedRange, before it is shared.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/fd.hpp"
#include "cuda/topology.hpp"

namespace linkspan::cuda {

/// Of the chunk that the address lies in (fact: Chunks.AnInteriorAddressFindsItsChunkAndSharesIt).
/// `unsupported`, with the remedy: made without that handle type. Does not wait for what is in
/// flight (fact: Chunks.SharingBesideAHeldStream).
Result<base::Fd> export_chunk(const Device& device, std::uint64_t address);

using PoolPointer = std::array<std::byte, 64>;
/// The pool that the allocation at `base` is of; and the allocation in it. `unsupported`, with the
/// remedy: a pool without that handle type.
Result<base::Fd> export_pool(const Device& device, std::uint64_t base);
Result<PoolPointer> export_pool_pointer(const Device& device, std::uint64_t base);

/// Lets a GPU reach chunks and pools of this very process, which by themselves only their own may
/// (fact: Chunks.AnotherGpuCopiesFromThemWithAccessOnly). OK for memory of any other kind.
Status allow_own(const Topology& topology, const Device& device, std::uint64_t address,
                 std::uint64_t bytes);

/// A peer's memory in our address space: one range, however many chunks. It stays valid when the
/// peer dies or unmaps its own (fact: Chunks.AMappingOutlivesItsExporter). Unmaps on destruction;
/// nothing in flight uses it then.
class SharedRange {
 public:
  /// Addresses for chunks of so many bytes together; add() maps the next one.
  static Result<std::unique_ptr<SharedRange>> reserve(const Device& device, std::uint64_t bytes);
  /// `corrupt`: more than was reserved. An error of the driver: no chunk, or a smaller one (fact:
  /// Chunks.AMappingBeyondItsChunkIsRefused).
  Status add(const base::Fd& chunk, std::uint64_t bytes);
  static Result<std::unique_ptr<SharedRange>> open(const Device& device, const base::Fd& pool,
                                                   const PoolPointer& pointer);
  SharedRange(const SharedRange&) = delete;
  SharedRange& operator=(const SharedRange&) = delete;
  ~SharedRange();

  /// Its copies and kernels may use it from now on.
  Status allow(const Device& device);
  std::uint64_t base() const noexcept { return base_; }
  /// What is mapped: measured, never what the peer claims.
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  explicit SharedRange(const Device& device) noexcept : device_(device) {}
  void end_import();

  const Device& device_;         // in whose context the driver is called
  CUmemoryPool pool_ = nullptr;  // null: chunks
  std::uint64_t base_ = 0, bytes_ = 0, reserved_ = 0;
};

}  // namespace linkspan::cuda
