// bench/lender.hpp - memory of a GPU, and a second process that lends some of GPU 0.
//
// Filled and compared with data in which every byte that landed wrongly shows.
// Threads: externally synchronised.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "cuda/handles.hpp"
#include "cuda/memory.hpp"
#include "tools/linkspan/pair/child_process.hpp"

namespace linkspan::bench {

inline constexpr int kSourceGpu = 0, kTargetGpu = 1;
/// The argument that makes the program its own second process.
inline constexpr const char* kLenderVerb = "--lender";

class GpuMemory {
 public:
  static Result<GpuMemory> create(const cuda::Device& device, std::uint64_t bytes);
  std::uint64_t address() const noexcept { return buffer_.address(); }
  Result<cuda::IpcHandle> handle() const { return cuda::export_ipc(*device_, address()); }

  Status fill(std::uint64_t seed);
  /// `corrupt` unless the first `bytes` are of `seed` and the others of `rest`.
  Status check(std::uint64_t bytes, std::uint64_t seed, std::uint64_t rest) const;

 private:
  GpuMemory(const cuda::Device& device, cuda::DeviceBuffer buffer)
      : device_(&device), buffer_(std::move(buffer)) {}
  /// To the memory, or with `to` zero from it.
  Status move(cuda::CUdeviceptr to, std::vector<std::byte>& data) const;

  const cuda::Device* device_;
  cuda::DeviceBuffer buffer_;
};

Result<const cuda::Device*> device_of(cuda::Topology& topology, int gpu);

/// The second process's main: lends until the first hangs up.
int lend();
/// Memory of the Lender's GPU 0, filled with `seed`, for as long as it lives.
Result<cuda::CUipcMemHandle> ask_for(tool::ChildProcess& lender, std::uint64_t bytes,
                                     std::uint64_t seed);

}  // namespace linkspan::bench
