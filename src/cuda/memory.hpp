// cuda/memory.hpp - owns memory that the driver allocated or pinned.
//
// PinnedBuffer: mapped host memory, for completion flags, lists that kernels read, staging.
// DeviceBuffer: memory of a GPU, for flags that kernels poll, bounces, tests and tools.
// HostRegistration: pins memory of another owner while it exists.
// Off the path of a byte: all of them take driver locks and milliseconds (docs/cuda_notes.md,
// "calls that synchronise"). The contents start undefined.
// Threads: immutable after construction; users of the memory synchronise access to it.
// Invariants: the context in which it was made outlives it; nothing in flight uses it when it ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "cuda/device_scope.hpp"

namespace linkspan::cuda {

/// The common part of the three owners: what is released, and how.
class OwnedMemory {
 public:
  using Release = void (*)(const Driver& driver, CUdeviceptr address, void* data);

  OwnedMemory(const DeviceScope& scope, Release release, CUdeviceptr address, void* data,
              std::size_t bytes) noexcept
      : driver_(&scope.driver()),
        context_(scope.context()),
        release_(release),
        address_(address),
        data_(data),
        bytes_(bytes) {}
  OwnedMemory(OwnedMemory&& other) noexcept { *this = std::move(other); }
  OwnedMemory& operator=(OwnedMemory&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(context_, other.context_);
    std::swap(release_, other.release_);
    std::swap(address_, other.address_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  OwnedMemory(const OwnedMemory&) = delete;
  OwnedMemory& operator=(const OwnedMemory&) = delete;
  ~OwnedMemory();  // errors while the driver unloads are ignored

  CUdeviceptr address() const noexcept { return address_; }
  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  const Driver* driver_ = nullptr;  // null only after a move
  CUcontext context_ = nullptr;
  Release release_ = nullptr;
  CUdeviceptr address_ = 0;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Page-aligned host memory, pinned for every device and mapped into all of them.
class PinnedBuffer {
 public:
  static Result<PinnedBuffer> create(const DeviceScope& scope, std::size_t bytes);
  std::byte* data() const noexcept { return static_cast<std::byte*>(memory_.data()); }
  /// Returns the address of the memory for kernels and copies of the scope's device.
  CUdeviceptr device_address() const noexcept { return memory_.address(); }
  /// Returns the same for a place in the memory.
  CUdeviceptr device_address(const void* place) const noexcept {
    return memory_.address() +
           static_cast<std::size_t>(static_cast<const std::byte*>(place) - data());
  }
  std::size_t bytes() const noexcept { return memory_.bytes(); }

 private:
  explicit PinnedBuffer(OwnedMemory memory) noexcept : memory_(std::move(memory)) {}
  OwnedMemory memory_;
};

/// Memory of the scope's device; aligned to 256 bytes at least.
class DeviceBuffer {
 public:
  static Result<DeviceBuffer> create(const DeviceScope& scope, std::size_t bytes);
  CUdeviceptr address() const noexcept { return memory_.address(); }
  std::size_t bytes() const noexcept { return memory_.bytes(); }

 private:
  explicit DeviceBuffer(OwnedMemory memory) noexcept : memory_(std::move(memory)) {}
  OwnedMemory memory_;
};

/// Pins host memory for every device and maps it into all of them. 256 MiB take 19 ms.
class HostRegistration {
 public:
  /// Pins `data`, which stays the caller's and outlives this. `busy`: the memory is pinned already.
  static Result<HostRegistration> create(const DeviceScope& scope, void* data, std::size_t bytes);
  std::byte* data() const noexcept { return static_cast<std::byte*>(memory_.data()); }
  CUdeviceptr device_address() const noexcept { return memory_.address(); }
  std::size_t bytes() const noexcept { return memory_.bytes(); }

 private:
  explicit HostRegistration(OwnedMemory memory) noexcept : memory_(std::move(memory)) {}
  OwnedMemory memory_;
};

}  // namespace linkspan::cuda
