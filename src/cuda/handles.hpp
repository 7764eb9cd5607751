// cuda/handles.hpp - exports device memory to other processes and maps what they export, by legacy
// CUDA IPC.
//
// A handle is 64 bytes that give their owner read and write access to the whole cudaMalloc
// allocation (fact: Handles.OneStandsForTheWholeAllocation). So handles go only over the
// authenticated Unix socket. Off the path of a byte: opening takes up to 10 ms, at import.
// Threads: any thread. An IpcMapping is immutable after construction.
// Invariants: nothing in flight uses an IpcMapping when it ends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "cuda/topology.hpp"

namespace linkspan::cuda {

using IpcHandle = std::array<std::byte, 64>;

/// Exports the allocation that contains `address`; its base is PointerFacts::base. `unsupported`:
/// memory that legacy IPC does not support (VMM, pools without a handle type, pinned host memory).
Result<IpcHandle> export_ipc(const Device& device, std::uint64_t address);

/// A peer's allocation, mapped here. Stays valid when the peer dies (fact:
/// Handles.AMappingOutlivesItsExporter); until it ends the memory is charged to the GPU. The
/// destructor closes it.
class IpcMapping {
 public:
  /// Opens the handle through `device`, which need not be the memory's own GPU. `corrupt`: the
  /// driver does not know the handle, or its exporter has ended. `unsupported`: the handle is of
  /// this process, or the two GPUs have no peer access.
  static Result<IpcMapping> open(const Device& device, const IpcHandle& handle);

  IpcMapping(IpcMapping&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), base_(other.base_), bytes_(other.bytes_) {}
  IpcMapping& operator=(IpcMapping&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  IpcMapping(const IpcMapping&) = delete;
  IpcMapping& operator=(const IpcMapping&) = delete;
  ~IpcMapping();

  std::uint64_t base() const noexcept { return base_; }
  /// Returns the size measured after the open, never what the peer claims.
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  IpcMapping(const Device& device, std::uint64_t base) noexcept : device_(&device), base_(base) {}

  const Device* device_;  // null only after a move
  std::uint64_t base_;
  std::uint64_t bytes_ = 0;
};

}  // namespace linkspan::cuda
