// tests/support/nccl_net_plugin/gpu.hpp - the GPU of a comm: copies on a stream of its own, and the
// memory for them.
//
// Threads: externally synchronised.
// Invariants: copies and fills end in the order of their begins; Staging ends before its Gpu.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "cuda/memory.hpp"
#include "cuda/stream.hpp"

namespace linkspan::nccl_test {

class Gpu {
 public:
  /// Whether this process has a driver and a GPU. The first call initialises the driver.
  static bool any();
  /// What is current on this thread; null: nothing, or there is no driver.
  static cuda::CUcontext current();
  static Result<std::unique_ptr<Gpu>> open(cuda::CUcontext context);

  bool is_current() const { return current() == context_; }
  bool owns(const void* memory, std::size_t bytes) const;

  /// Each answers the number that passed() takes.
  Result<std::uint64_t> copy(cuda::CUdeviceptr to, cuda::CUdeviceptr from, std::size_t bytes);
  Result<std::uint64_t> fill(cuda::CUdeviceptr to, unsigned char value, std::size_t bytes);
  bool passed(std::uint64_t number) const noexcept;
  /// ok: all goes well on the stream.
  Status health() const;
  /// Waits, for the ends of comms.
  void drain();

  Result<cuda::PinnedBuffer> pinned(std::size_t bytes) const;
  Result<cuda::DeviceBuffer> device(std::size_t bytes) const;

 private:
  Gpu(cuda::CUcontext context, int ordinal, cuda::Stream stream, cuda::PinnedBuffer word)
      : context_(context), ordinal_(ordinal), stream_(std::move(stream)), word_(std::move(word)) {}
  Result<std::uint64_t> mark(const cuda::DeviceScope& scope);

  const cuda::CUcontext context_;
  const int ordinal_;
  cuda::Stream stream_;
  cuda::PinnedBuffer word_;  // the number of what has passed
  std::uint64_t begun_ = 0;
};

inline cuda::CUdeviceptr address_of(const void* memory) {
  return reinterpret_cast<cuda::CUdeviceptr>(memory);
}

/// Pinned memory that grows, and forgets when it does.
class Staging {
 public:
  Status reserve(const Gpu& gpu, std::size_t bytes);
  std::byte* data() const { return buffer_->data(); }
  cuda::CUdeviceptr address() const { return buffer_->device_address(); }

 private:
  std::optional<cuda::PinnedBuffer> buffer_;
};

}  // namespace linkspan::nccl_test
