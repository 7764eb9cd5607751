#include "bench/bare/ipc_copy.hpp"

#include <chrono>

namespace linkspan::bare {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

Result<std::unique_ptr<IpcCopy>> IpcCopy::create(const cuda::Device& device) {
  auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  return std::unique_ptr<IpcCopy>(new IpcCopy(device, *std::move(stream)));
}

Result<cuda::CUdeviceptr> IpcCopy::open(const cuda::CUipcMemHandle& handle) const {
  cuda::CUdeviceptr base = 0;
  const auto result =
      device_.driver().cuIpcOpenMemHandle(&base, handle, cuda::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result == cuda::CUDA_SUCCESS) return base;
  return cuda::to_status(device_.driver(), result, "cuIpcOpenMemHandle");
}

Status IpcCopy::close(cuda::CUdeviceptr base) const {
  return cuda::to_status(device_.driver(), device_.driver().cuIpcCloseMemHandle(base),
                         "cuIpcCloseMemHandle");
}

Result<Duration> IpcCopy::copy(const Target& to, cuda::CUdeviceptr from, std::size_t bytes) const {
  const cuda::Driver& driver = device_.driver();
  const auto begin = Clock::now();
  auto result = driver.cuMemcpyPeerAsync(to.address, to.context, from, device_.context(), bytes,
                                         stream_.get());
  if (result == cuda::CUDA_SUCCESS) result = driver.cuStreamSynchronize(stream_.get());
  const Duration took = Clock::now() - begin;
  if (result == cuda::CUDA_SUCCESS) return took;
  return cuda::to_status(driver, result, "cuMemcpyPeerAsync and cuStreamSynchronize");
}

Result<Duration> IpcCopy::open_copy_close(const Target& to, const cuda::CUipcMemHandle& handle,
                                          std::uint64_t offset, std::size_t bytes) const {
  const auto begin = Clock::now();
  const auto base = open(handle);
  if (!base.ok()) return base.status();
  const auto copied = copy(to, *base + offset, bytes);
  const Status closed = close(*base);
  const Duration took = Clock::now() - begin;
  if (!copied.ok()) return copied.status();
  if (!closed.ok()) return closed;
  return took;
}

}  // namespace linkspan::bare
