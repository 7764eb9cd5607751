// p2p/tcpx/tcpx_memory.hpp - page-aligned memory for a network plugin, on the host or on
// the first GPU.
//
// Threads: one thread. Its current CUDA context is the GPU's from create() to the destructor,
// because a plugin uses the current context.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"

namespace linkspan::tool {

class TcpxMemory {
 public:
  /// Allocates whole pages, at least one.
  static Result<std::unique_ptr<TcpxMemory>> create(bool on_gpu, std::uint64_t bytes);
  TcpxMemory(const TcpxMemory&) = delete;
  TcpxMemory& operator=(const TcpxMemory&) = delete;
  ~TcpxMemory() = default;

  bool on_gpu() const noexcept { return device_ != nullptr; }
  const cuda::Device* device() const noexcept { return device_; }        ///< Null: on the host.
  cuda::Topology* topology() const noexcept { return topology_.get(); }  ///< Null: on the host.
  void* data() const noexcept {
    return reinterpret_cast<void*>(at_);  // NOLINT(performance-no-int-to-ptr)
  }
  std::uint64_t address() const noexcept { return at_; }
  std::uint64_t bytes() const noexcept { return bytes_; }

  // Each call returns once the copy is complete.
  Status put(const std::vector<unsigned char>& from) const;
  Status get(std::vector<unsigned char>& into) const;
  Status fill(unsigned char value) const;

 private:
  TcpxMemory() = default;
  Status allocate_on_gpu();
  Status copy(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) const;

  std::uint64_t at_ = 0, bytes_ = 0;
  std::vector<unsigned char> host_;
  std::unique_ptr<cuda::Topology> topology_;
  const cuda::Device* device_ = nullptr;
  std::optional<cuda::DeviceScope> scope_;
  std::optional<cuda::DeviceBuffer> gpu_;
  std::optional<cuda::Stream> stream_;
};

}  // namespace linkspan::tool
