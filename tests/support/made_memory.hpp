// tests/support/made_memory.hpp - memory of a GPU that cudaMalloc did not make.
//
// Threads: externally synchronised.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/topology.hpp"
#include "tests/support/memory_entries.hpp"

namespace linkspan::test {

/// Chunks in a row, readable and writable by their own GPU only.
class ChunkRow {
 public:
  static constexpr std::uint64_t kChunk = 2u << 20;

  /// Makes at least `bytes`, and three chunks. `shared`: with file descriptors as handles.
  ChunkRow(const cuda::Device& device, std::uint64_t bytes, bool shared);
  ChunkRow(const ChunkRow&) = delete;
  ChunkRow& operator=(const ChunkRow&) = delete;
  ~ChunkRow();

  std::uint64_t base() const noexcept { return base_; }
  /// Replaces the i-th chunk by another one; the contents are undefined.
  void remap(std::size_t i);
  void unmap(std::size_t i);

 private:
  void map(std::size_t i);

  const cuda::Device& device_;
  const cuda::MemoryEntries entries_;
  const bool shared_;
  std::uint64_t base_ = 0;
  std::vector<bool> mapped_;
};

/// An allocation of a pool of its own.
class PoolMemory {
 public:
  PoolMemory(const cuda::Device& device, std::uint64_t bytes, bool shared);
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;
  ~PoolMemory();

  std::uint64_t base() const noexcept { return base_; }

 private:
  const cuda::Device& device_;
  cuda::CUmemoryPool pool_ = nullptr;
  cuda::CUdeviceptr base_ = 0;
};

}  // namespace linkspan::test
