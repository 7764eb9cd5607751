#include "bench/bare/ping.hpp"

namespace linkspan::bare {
namespace {

constexpr std::uint64_t kLine = 128;  // words of different writers lie so far apart

}  // namespace

Result<std::unique_ptr<Ping>> Ping::create(const cuda::Device& device, std::byte* memory,
                                           unsigned side) {
  auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  auto registered = cuda::HostRegistration::create(*scope, memory, kPageBytes);
  if (!registered.ok()) return registered.status();
  return std::unique_ptr<Ping>(new Ping(device, *std::move(stream), *std::move(registered), side));
}

Result<Duration> Ping::round(cuda::CUdeviceptr to, cuda::CUdeviceptr from, std::uint64_t bytes,
                             Duration limit) {
  auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  const auto begin = Clock::now();
  if (Status s = send(*scope, to, from, bytes); !s.ok()) return s;
  if (Status s = spin(ours(), sent_, *scope, stream_, begin + limit); !s.ok()) return s;
  return Duration(Clock::now() - begin) / 2;
}

Status Ping::answer(cuda::CUdeviceptr to, cuda::CUdeviceptr from, std::uint64_t bytes,
                    Duration limit) {
  auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  if (Status s = spin(ours(), sent_ + 1, *scope, stream_, Clock::now() + limit); !s.ok()) return s;
  return send(*scope, to, from, bytes);
}

Status Ping::send(const cuda::DeviceScope& scope, cuda::CUdeviceptr to, cuda::CUdeviceptr from,
                  std::uint64_t bytes) {
  const auto result = device_.driver().cuMemcpyAsync(to, from, bytes, stream_.get());
  if (result != cuda::CUDA_SUCCESS)
    return cuda::to_status(device_.driver(), result, "cuMemcpyAsync");
  return stream_.write_value(scope, memory_.device_address() + (1 - side_) * kLine, ++sent_);
}

const std::uint64_t* Ping::ours() const noexcept {
  return reinterpret_cast<const std::uint64_t*>(memory_.data() + side_ * kLine);
}

}  // namespace linkspan::bare
