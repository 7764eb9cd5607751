// tools/linkspan/pair/memories.hpp - memory of every kind that the tool moves bytes between.
//
// Filled and compared with the data of data.hpp. Memory of a GPU is accessed by bare copies through
// a staging buffer, never through the library under test.
// Threads: externally synchronised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "bench/bare/gpu_copy.hpp"
#include "cuda/memory.hpp"
#include "cuda/topology.hpp"
#include "linkspan/engine.hpp"
#include "tools/linkspan/pair/shape.hpp"

namespace linkspan::tool {

/// A memory of a process. `gpu` is an index of the visible GPUs, equal in a child process with the
/// same environment. `region` counts memories of one kind, each an allocation.
struct Place {
  MemoryKind kind = MemoryKind::host;
  unsigned gpu = 0;
  unsigned region = 0;

  /// Returns "gpu0", "gpu1", "pinned", "pageable", "shared"; of further regions "gpu0.1", ...
  std::string name() const;
  static std::optional<Place> parse(std::string_view name);
  Place with_region(unsigned number) const noexcept { return {kind, gpu, number}; }
  bool on_gpu() const noexcept { return kind == MemoryKind::device; }
  friend bool operator==(const Place&, const Place&) = default;
};

inline constexpr Place kGpu0{.kind = MemoryKind::device};
inline constexpr Place kGpu1{.kind = MemoryKind::device, .gpu = 1};
inline constexpr Place kPinned{.kind = MemoryKind::pinned}, kHost{.kind = MemoryKind::host};
inline constexpr Place kShared{.kind = MemoryKind::shared};

/// The GPUs of the machine, which the tool uses beside the Engine.
class Gpus {
 public:
  /// Finds them. Without a driver or a GPU the result is empty, and why() has the reason.
  static Gpus find();

  unsigned count() const noexcept;
  /// Returns whether there are real GPUs. The simulated driver's memory is host memory and slow.
  bool real() const;
  const cuda::DeviceInfo& info(unsigned gpu) const;
  const Status& why() const noexcept { return why_; }
  const cuda::Topology* topology() const noexcept { return topology_.get(); }  ///< Null: none.
  Result<const cuda::Device*> device(unsigned gpu) const;
  /// Returns the places of a process here: the first GPUs, pinned, pageable, shared.
  std::vector<Place> places(unsigned most_gpus = 2) const;

 private:
  std::unique_ptr<cuda::Topology> topology_;  // null: none
  Status why_;
};

class Memory {
 public:
  /// Allocates memory and registers it in `engine`. `gpus` and the Engine outlive it.
  static Result<std::unique_ptr<Memory>> create(Engine& engine, const Gpus& gpus, Place place,
                                                std::uint64_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  Place place() const noexcept { return place_; }
  const Region& region() const noexcept { return region_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  /// Returns the address of this process, for a GPU the device address.
  std::uint64_t address() const noexcept { return reinterpret_cast<std::uint64_t>(region_.data()); }
  /// Returns the offset in the allocation, which CUDA IPC maps as a whole.
  std::uint64_t allocation_offset() const noexcept { return allocation_offset_; }
  const cuda::Device* device() const noexcept { return device_; }  ///< Null: host memory.

  /// Copies bytes into the memory, or out of it.
  Status put(std::uint64_t offset, std::span<const std::byte> data);
  Status get(std::uint64_t offset, std::span<std::byte> into);
  /// Fills [offset, offset + bytes) with the data of `seed` at positions `from`, `from` + 1, ...
  Status fill(std::uint64_t offset, std::uint64_t bytes, std::uint64_t seed, std::uint64_t from);
  /// Compares with the same data. `corrupt`: names the first wrong byte.
  Status check(std::uint64_t offset, std::uint64_t bytes, std::uint64_t seed, std::uint64_t from);
  /// Compares consecutive tiles that begin at `offset`.
  Status check(std::uint64_t offset, std::span<const Tile> tiles);

 private:
  Memory(Place place, std::uint64_t bytes) : place_(place), bytes_(bytes) {}
  Status allocate(const Gpus& gpus);
  void* allocation() const noexcept;
  Status check_range(std::uint64_t offset, std::uint64_t bytes) const;

  const Place place_;
  const std::uint64_t bytes_;
  std::uint64_t allocation_offset_ = 0;
  const cuda::Device* device_ = nullptr;
  void* mapped_ = nullptr;  // pageable memory, from mmap
  std::variant<std::monostate, cuda::PinnedBuffer, cuda::DeviceBuffer> owner_;
  std::optional<cuda::PinnedBuffer> staging_;  // for memory of a GPU
  std::unique_ptr<bare::GpuCopy> copy_;
  Region region_;
};

}  // namespace linkspan::tool
