// tests/support/nccl_net_plugin/gpu.hpp - the GPU of a comm: copies on a stream of its own, and the
// memory for them.
//
// Of the library's cuda room it takes the table of the driver only: with thread-local variables in
// several modules that are loaded late LeakSanitizer of clang 14 reads where there is nothing.
// Threads: externally synchronised.
// Invariants: copies and fills end in the order of their begins; a Block ends before its Gpu.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "cuda/driver.hpp"

namespace linkspan::nccl_test {

/// Memory that the driver gave: of the GPU, or of the host, pinned and mapped.
class Block {
 public:
  Block(cuda::CUcontext context, cuda::CUdeviceptr address, void* data, std::size_t bytes)
      : context_(context), address_(address), data_(data), bytes_(bytes) {}
  Block(Block&& other) noexcept
      : context_(std::exchange(other.context_, nullptr)),
        address_(other.address_),
        data_(other.data_),
        bytes_(other.bytes_) {}
  Block& operator=(Block&&) = delete;
  ~Block();

  cuda::CUdeviceptr address() const noexcept { return address_; }
  /// Returns the host's address; null for memory of the GPU.
  std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  cuda::CUcontext context_;  // null only after a move
  cuda::CUdeviceptr address_;
  void* data_;
  std::size_t bytes_;
};

class Gpu {
 public:
  /// Returns true if this process has a driver and a GPU. The first call initialises the driver.
  static bool any();
  /// Returns true for memory of any of this process's GPUs.
  static bool is_its(const void* memory);
  /// Returns this thread's current context; null if it has none, or there is no driver.
  static cuda::CUcontext current();
  static Result<std::unique_ptr<Gpu>> open(cuda::CUcontext context);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu();

  bool is_current() const { return current() == context_; }
  bool owns(const void* memory, std::size_t bytes) const;

  /// Submit a copy. Each returns the number that passed() takes.
  Result<std::uint64_t> copy(cuda::CUdeviceptr to, cuda::CUdeviceptr from, std::size_t bytes);
  Result<std::uint64_t> fill(cuda::CUdeviceptr to, unsigned char value, std::size_t bytes);
  bool passed(std::uint64_t number) const noexcept;
  /// Returns OK if the stream has no error.
  Status health() const;
  /// Waits for the stream, at the end of a comm.
  void drain();

  Result<Block> pinned(std::size_t bytes) const;
  Result<Block> device(std::size_t bytes) const;

 private:
  explicit Gpu(cuda::CUcontext context) : context_(context) {}
  Result<std::uint64_t> mark();  // in the context

  const cuda::CUcontext context_;
  int ordinal_ = -1;
  cuda::CUstream stream_ = nullptr;
  std::optional<Block> word_;  // the number of what has passed
  std::uint64_t begun_ = 0;
};

inline cuda::CUdeviceptr address_of(const void* memory) {
  return reinterpret_cast<cuda::CUdeviceptr>(memory);
}

/// Pinned memory that grows, and forgets when it does.
class Staging {
 public:
  Status reserve(const Gpu& gpu, std::size_t bytes);
  std::byte* data() const { return block_->data(); }
  cuda::CUdeviceptr address() const { return block_->address(); }

 private:
  std::optional<Block> block_;
};

}  // namespace linkspan::nccl_test
