// bench/bare/ipc_copy.hpp - the least that a copy out of another process's memory can cost, by the
// four calls that CUDA has for it: the ceiling of libnvlink_transfer.
//
// Threads: externally synchronised.
// Invariants: the Device outlives it, and its context is current during every call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "cuda/stream.hpp"
#include "cuda/topology.hpp"
#include "linkspan/types.hpp"

namespace linkspan::bare {

/// Device memory of this process, and the context that it is of.
struct Target {
  cuda::CUdeviceptr address;
  cuda::CUcontext context;
};

class IpcCopy {
 public:
  /// Copies in a stream of `device`, through which handles are opened too: the source's GPU.
  static Result<std::unique_ptr<IpcCopy>> create(const cuda::Device& device);

  Result<cuda::CUdeviceptr> open(const cuda::CUipcMemHandle& handle) const;
  Status close(cuda::CUdeviceptr base) const;

  /// cuMemcpyPeerAsync and cuStreamSynchronize: from the call to the return.
  Result<Duration> copy(const Target& to, cuda::CUdeviceptr from, std::size_t bytes) const;
  /// The same between opening the handle and closing it, whose time counts too.
  Result<Duration> open_copy_close(const Target& to, const cuda::CUipcMemHandle& handle,
                                   std::uint64_t offset, std::size_t bytes) const;

  cuda::CUstream stream() const noexcept { return stream_.get(); }

 private:
  IpcCopy(const cuda::Device& device, cuda::Stream stream)
      : device_(device), stream_(std::move(stream)) {}

  const cuda::Device& device_;
  const cuda::Stream stream_;
};

}  // namespace linkspan::bare
