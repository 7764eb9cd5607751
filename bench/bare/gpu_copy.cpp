#include "bench/bare/gpu_copy.hpp"

#include <atomic>
#include <chrono>

namespace linkspan::bare {
namespace {

using Clock = std::chrono::steady_clock;
constexpr unsigned kLooksPerQuery = 1u << 14;  // some 10 us: the clock and the driver are asked

}  // namespace

Result<std::unique_ptr<GpuCopy>> GpuCopy::create(const cuda::Device& device) {
  auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  auto word = cuda::PinnedBuffer::create(*scope, sizeof(std::uint64_t));
  if (!word.ok()) return word.status();
  *reinterpret_cast<std::uint64_t*>(word->data()) = 0;
  return std::unique_ptr<GpuCopy>(new GpuCopy(device, *std::move(stream), *std::move(word)));
}

Result<Duration> GpuCopy::run(cuda::CUdeviceptr to, cuda::CUdeviceptr from, std::size_t bytes,
                              Duration limit, unsigned depth) {
  const cuda::Driver& driver = device_.driver();
  auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  const std::atomic_ref<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(word_.data()));
  const std::uint64_t expected = runs_ += depth;

  const auto begin = Clock::now();
  for (unsigned left = depth; left-- > 0; to += bytes, from += bytes) {
    const auto result = driver.cuMemcpyAsync(to, from, bytes, stream_.get());
    if (result != cuda::CUDA_SUCCESS) return cuda::to_status(driver, result, "cuMemcpyAsync");
    if (Status s = stream_.write_value(*scope, word_.device_address(), expected - left); !s.ok())
      return s;
  }
  for (unsigned looks = 1; word.load(std::memory_order_acquire) != expected; ++looks) {
    if (looks % kLooksPerQuery != 0) continue;
    const Status state = stream_.query(*scope);
    if (!state.ok() && state.code() != Code::pending) return state;
    if (Clock::now() - begin > limit)
      return Status(Code::timed_out, Scope::request, "the bare copy did not end in time");
  }
  return Duration(Clock::now() - begin);
}

}  // namespace linkspan::bare
