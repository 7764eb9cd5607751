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

Status GpuCopy::start(const cuda::DeviceScope& scope, Way way, std::size_t bytes, unsigned depth) {
  const cuda::Driver& driver = device_.driver();
  for (unsigned i = 0; i < depth; ++i) {
    const auto result =
        driver.cuMemcpyAsync(way.to + i * bytes, way.from + i * bytes, bytes, stream_.get());
    if (result != cuda::CUDA_SUCCESS) return cuda::to_status(driver, result, "cuMemcpyAsync");
  }
  return word_.write(scope, stream_, ++runs_);
}

Result<Duration> GpuCopy::run(Way way, std::size_t bytes, Duration limit, unsigned depth) {
  auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  const auto begin = Clock::now();
  if (Status s = start(*scope, way, bytes, depth); !s.ok()) return s;
  if (Status s = word_.wait(*scope, stream_, runs_, begin + limit); !s.ok()) return s;
  return Duration(Clock::now() - begin);
}

Result<Duration> GpuCopy::run_both(GpuCopy& one, Way way, GpuCopy& other, Way other_way,
                                   std::size_t bytes, Duration limit) {
  auto scope = one.device_.enter();
  if (!scope.ok()) return scope.status();
  const auto begin = Clock::now();
  if (Status s = one.start(*scope, way, bytes, 1); !s.ok()) return s;
  {
    auto inner = other.device_.enter();
    if (!inner.ok()) return inner.status();
    if (Status s = other.start(*inner, other_way, bytes, 1); !s.ok()) return s;
    if (Status s = other.word_.wait(*inner, other.stream_, other.runs_, begin + limit); !s.ok())
      return s;
  }
  if (Status s = one.word_.wait(*scope, one.stream_, one.runs_, begin + limit); !s.ok()) return s;
  return Duration(Clock::now() - begin);
}

Result<Duration> GpuCopy::run_synchronised(Way way, std::size_t bytes) {
  const cuda::Driver& driver = device_.driver();
  auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  const auto begin = Clock::now();
  auto result = driver.cuMemcpyAsync(way.to, way.from, bytes, stream_.get());
  if (result == cuda::CUDA_SUCCESS) result = driver.cuStreamSynchronize(stream_.get());
  const Duration took = Clock::now() - begin;
  if (result == cuda::CUDA_SUCCESS) return took;
  return cuda::to_status(driver, result, "cuMemcpyAsync and cuStreamSynchronize");
}

}  // namespace linkspan::bare
