// cuda/memory.hpp - owns memory that the driver gave or pinned; each type frees it by itself.
//
// PinnedBuffer: mapped host memory, for completion words, lists that kernels read, staging.
// DeviceBuffer: memory of a GPU, for words that kernels poll, bounces, tests and tools.
// HostRegistration: pins memory that is somebody else's, for as long as it lives.
// All of them take driver locks and milliseconds (docs/cuda_notes.md, "calls that synchronise"):
// never on the path of a byte. The contents start undefined.
// Threads: immutable after construction; what lies in the memory is the user's to synchronise.
// Invariants: the context that it was made in outlives it; nothing in flight uses it when it ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "cuda/device_scope.hpp"

namespace linkspan::cuda {

/// What is given back, and where: the common part of the three owners.
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
  ~OwnedMemory();  // silent while the driver unloads

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

/// Page-aligned, pinned for every device and mapped into all of them.
class PinnedBuffer {
 public:
  static Result<PinnedBuffer> create(const DeviceScope& scope, std::size_t bytes);
  std::byte* data() const noexcept { return static_cast<std::byte*>(memory_.data()); }
  /// The same memory as kernels and copies of the scope's device see it.
  CUdeviceptr device_address() const noexcept { return memory_.address(); }
  std::size_t bytes() const noexcept { return memory_.bytes(); }

 private:
  explicit PinnedBuffer(OwnedMemory memory) noexcept : memory_(std::move(memory)) {}
  OwnedMemory memory_;
};

/// In the memory of the scope's device; aligned to 256 at least.
class DeviceBuffer {
 public:
  static Result<DeviceBuffer> create(const DeviceScope& scope, std::size_t bytes);
  CUdeviceptr address() const noexcept { return memory_.address(); }
  std::size_t bytes() const noexcept { return memory_.bytes(); }

 private:
  explicit DeviceBuffer(OwnedMemory memory) noexcept : memory_(std::move(memory)) {}
  OwnedMemory memory_;
};

/// Pinned for every device and mapped into all of them. 256 MiB take 19 ms.
class HostRegistration {
 public:
  /// `data` stays the caller's and outlives this. Memory that is pinned already is refused: `busy`.
  static Result<HostRegistration> create(const DeviceScope& scope, void* data, std::size_t bytes);
  std::byte* data() const noexcept { return static_cast<std::byte*>(memory_.data()); }
  CUdeviceptr device_address() const noexcept { return memory_.address(); }
  std::size_t bytes() const noexcept { return memory_.bytes(); }

 private:
  explicit HostRegistration(OwnedMemory memory) noexcept : memory_(std::move(memory)) {}
  OwnedMemory memory_;
};

}  // namespace linkspan::cuda
