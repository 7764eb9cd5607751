// cuda/handles.hpp - lends device memory to another process, and maps what another process lent.
//
// Legacy CUDA IPC: 64 bytes that open the whole cudaMalloc allocation, read and write, for whoever
// has them (fact: Handles.OneStandsForTheWholeAllocation). So they travel only over the
// authenticated Unix socket. Opening takes up to 10 ms: at import, never on the path of a byte.
// Threads: any thread. An IpcMapping is immutable after construction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "cuda/topology.hpp"

namespace linkspan::cuda {

using IpcHandle = std::array<std::byte, 64>;

/// Of the allocation that `address` lies in, whose base is PointerFacts::base. `unsupported`:
/// memory that legacy IPC does not know (VMM, pools without a handle type, pinned host memory).
Result<IpcHandle> export_ipc(const Device& device, std::uint64_t address);

/// A peer's allocation in our address space. It stays valid when the peer dies (fact:
/// Handles.AMappingOutlivesItsExporter); the memory is charged to the GPU until this ends. Closes
/// on destruction; nothing in flight uses it then.
class IpcMapping {
 public:
  /// Through `device`, which need not be the one that holds the memory. `corrupt`: the driver does
  /// not know the handle, or its exporter is gone. `unsupported`: it is this very process's, or
  /// the two GPUs do not reach each other.
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
  /// Measured after the open, never what the peer claims.
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  IpcMapping(const Device& device, std::uint64_t base) noexcept : device_(&device), base_(base) {}

  const Device* device_;  // null only after a move
  std::uint64_t base_;
  std::uint64_t bytes_ = 0;
};

}  // namespace linkspan::cuda
