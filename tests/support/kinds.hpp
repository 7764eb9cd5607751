// tests/support/kinds.hpp - memory of every kind with a guard before and after it, which the test's
// CPU fills and compares.
//
// Threads: externally synchronised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"
#include "linkspan/status.hpp"
#include "linkspan/types.hpp"
#include "tests/support/made_memory.hpp"
#include "tests/support/pattern.hpp"

namespace linkspan::test {

/// Returns this process's Topology, for all tests; null without a GPU and a simulated driver.
cuda::Topology* topology();
/// Reason of a test that skips for that.
inline constexpr const char* kNeedsGpu = "needs a GPU or the simulated driver";
/// Returns `unsupported` with kNeedsGpu, or if there are fewer than `count` GPUs.
Status need_gpus(unsigned count);

/// How GPU memory is allocated: by cuMemAlloc; as a row of chunks of 2 MiB, whose first border is a
/// few KiB after the front guard; from a pool of its own. The last two have file descriptors as
/// handles, or none.
enum class Make : std::uint8_t { allocated, chunks, unshared_chunks, pool, unshared_pool };

class Buffer {
 public:
  static constexpr std::uint64_t kGuard = 4096;
  /// Alignment of cuMemAlloc's memory here, which TCPX requires. The driver aligns to 512 bytes
  /// only.
  static constexpr std::uint64_t kAlignment = 4096;

  /// Allocates host, pinned or device memory (of the `gpu`-th); `bytes` lie between guards of
  /// `guard` bytes.
  static Result<std::unique_ptr<Buffer>> create(MemoryKind kind, std::uint64_t bytes,
                                                unsigned gpu = 0, std::uint64_t guard = kGuard,
                                                Make make = Make::allocated);
  /// Wraps host memory with another owner, which has room for the guards too.
  static std::unique_ptr<Buffer> over(void* whole, std::uint64_t bytes,
                                      std::uint64_t guard = kGuard);

  void* data() const noexcept { return whole_ + guard_; }
  /// Returns the row of memory that was made as chunks.
  ChunkRow& row() { return *std::get<std::unique_ptr<ChunkRow>>(owner_); }
  std::uint64_t bytes() const noexcept { return bytes_; }

  /// Fills everything, the guards too, with the pattern of `seed`.
  void fill(std::uint64_t seed);
  /// Fills the part of it that lies in `part`.
  void fill(std::uint64_t seed, const Extent& part);
  /// Returns an empty text if every byte is as expected.
  std::string difference(std::uint64_t seed, std::span<const Expected> expected,
                         std::span<const Extent> anything = {}) const;

 private:
  Buffer(std::uint64_t bytes, std::uint64_t guard) : bytes_(bytes), guard_(guard) {}
  std::uint64_t whole_bytes() const noexcept { return bytes_ + 2 * guard_; }
  void put(std::uint64_t seed, std::uint64_t position, std::uint64_t bytes);
  Status copy(const void* from, void* to, std::uint64_t bytes) const;  // by the GPU

  const std::uint64_t bytes_, guard_;
  std::byte* whole_ = nullptr;
  const cuda::Device* device_ = nullptr;  // null: the CPU reaches it
  std::optional<cuda::Stream> stream_;    // to make one later may wait for a stream that is held
  std::variant<std::monostate, std::vector<std::byte>, cuda::PinnedBuffer, cuda::DeviceBuffer,
               std::unique_ptr<ChunkRow>, std::unique_ptr<PoolMemory>>
      owner_;
};

}  // namespace linkspan::test
