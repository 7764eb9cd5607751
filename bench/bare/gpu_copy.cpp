#include "bench/bare/gpu_copy.hpp"

namespace linkspan::bare {

Result<std::unique_ptr<GpuCopy>> GpuCopy::create(const cuda::Device& device) {
  auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  auto word = EndWord::create(*scope);
  if (!word.ok()) return word.status();
  return std::unique_ptr<GpuCopy>(new GpuCopy(device, *std::move(stream), *std::move(word)));
}

Result<Duration> GpuCopy::run(cuda::CUdeviceptr to, cuda::CUdeviceptr from, std::size_t bytes,
                              Duration limit, unsigned depth) {
  const cuda::Driver& driver = device_.driver();
  auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  const std::uint64_t expected = ++runs_;

  const auto begin = Clock::now();
  for (unsigned i = 0; i < depth; ++i) {
    const auto result =
        driver.cuMemcpyAsync(to + i * bytes, from + i * bytes, bytes, stream_.get());
    if (result != cuda::CUDA_SUCCESS) return cuda::to_status(driver, result, "cuMemcpyAsync");
  }
  if (Status s = word_.write(*scope, stream_, expected); !s.ok()) return s;
  if (Status s = word_.wait(*scope, stream_, expected, begin + limit); !s.ok()) return s;
  return Duration(Clock::now() - begin);
}

Result<Duration> GpuCopy::run_synchronised(cuda::CUdeviceptr to, cuda::CUdeviceptr from,
                                           std::size_t bytes) {
  const cuda::Driver& driver = device_.driver();
  auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  const auto begin = Clock::now();
  auto result = driver.cuMemcpyAsync(to, from, bytes, stream_.get());
  if (result == cuda::CUDA_SUCCESS) result = driver.cuStreamSynchronize(stream_.get());
  const Duration took = Clock::now() - begin;
  if (result == cuda::CUDA_SUCCESS) return took;
  return cuda::to_status(driver, result, "cuMemcpyAsync and cuStreamSynchronize");
}

}  // namespace linkspan::bare
