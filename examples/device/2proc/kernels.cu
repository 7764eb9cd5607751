// The kernels of simple_write: what a GPU does by itself, once the host has made a window.
#include "kernels.h"

#include "linkspan/device/put.cuh"
#include "linkspan/device/signal.cuh"

namespace simple_write {
namespace {

using linkspan::device::Bound;
using linkspan::device::nanoseconds;
using linkspan::device::Outcome;
using linkspan::device::put_signal;
using linkspan::device::put_signal_grid;
using linkspan::device::Scope;
using linkspan::device::signal_add;
using linkspan::device::wait_signal;
using linkspan::device::Window;

constexpr unsigned kThreads = 512;  // of a block

template <Scope S>
__global__ void __launch_bounds__(kThreads)
    initiate(Window window, const unsigned char* data, std::uint64_t bytes, std::uint64_t before,
             std::uint32_t count, std::uint64_t timeout_ns, std::uint64_t* took_ns,
             Report* report) {
  const Bound bound = window.within(timeout_ns);
  Outcome outcome = Outcome::ok;
  std::uint32_t round = 0;
  for (; round < count; ++round) {
    const std::uint64_t begin = nanoseconds();
    // The bytes, then the signal: a kernel that sees the signal sees the bytes.
    outcome = put_signal<S>(window, 0, data, bytes, kData);
    if (outcome != Outcome::ok) break;
    outcome = wait_signal<S>(window, kAck, before + round + 1, bound);
    if (outcome != Outcome::ok) break;
    if (threadIdx.x == 0) took_ns[round] = nanoseconds() - begin;
  }
  if (threadIdx.x == 0) *report = {outcome, round};
}

template <Scope S>
__global__ void __launch_bounds__(kThreads)
    answer(Window window, std::uint64_t before, std::uint32_t count, std::uint64_t timeout_ns,
           Report* report) {
  const Bound bound = window.within(timeout_ns);
  Outcome outcome = Outcome::ok;
  std::uint32_t round = 0;
  while (round < count) {
    outcome = wait_signal<S>(window, kData, before + round + 1, bound);
    if (outcome != Outcome::ok) break;
    ++round;
    // Here all lanes could use what has come. wait_signal() was a barrier, so one answers for all.
    if (threadIdx.x == 0) (void)signal_add(window, kAck);
  }
  if (threadIdx.x == 0) *report = {outcome, round};
}

__global__ void __launch_bounds__(kThreads)
    put_wide(Window window, const unsigned char* data, std::uint64_t bytes, std::uint64_t before,
             std::uint64_t timeout_ns, std::uint64_t* took_ns, Report* report,
             std::uint32_t* arrived) {
  const std::uint64_t begin = nanoseconds();
  Outcome outcome = put_signal_grid(window, 0, data, bytes, kData, arrived);
  if (blockIdx.x != 0) return;
  if (outcome == Outcome::ok)
    outcome = wait_signal<Scope::block>(window, kAck, before + 1, window.within(timeout_ns));
  if (threadIdx.x != 0) return;
  *took_ns = nanoseconds() - begin;
  *report = {outcome, outcome == Outcome::ok ? 1u : 0u};
}

/// Returns a launch of as many threads as the scope has. Only the block scope takes several blocks.
cudaLaunchConfig_t config_of(Scope scope, unsigned ctas, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = {ctas, 1, 1};
  config.blockDim = {scope == Scope::thread ? 1u : scope == Scope::warp ? 32u : kThreads, 1, 1};
  config.stream = stream;
  return config;
}

template <Scope S>
cudaError_t launch_initiate(const Rounds& r, cudaStream_t stream) {
  const auto config = config_of(S, 1, stream);
  return cudaLaunchKernelEx(&config, initiate<S>, r.window, r.data, r.bytes, r.before, r.count,
                            r.timeout_ns, r.took_ns, r.report);
}

template <Scope S>
cudaError_t launch_answer(const Rounds& r, cudaStream_t stream) {
  const auto config = config_of(S, 1, stream);
  return cudaLaunchKernelEx(&config, answer<S>, r.window, r.before, r.count, r.timeout_ns,
                            r.report);
}

}  // namespace

cudaError_t load_kernels() {
  const void* const kernels[] = {reinterpret_cast<const void*>(initiate<Scope::thread>),
                                 reinterpret_cast<const void*>(initiate<Scope::warp>),
                                 reinterpret_cast<const void*>(initiate<Scope::block>),
                                 reinterpret_cast<const void*>(answer<Scope::thread>),
                                 reinterpret_cast<const void*>(answer<Scope::warp>),
                                 reinterpret_cast<const void*>(answer<Scope::block>),
                                 reinterpret_cast<const void*>(put_wide)};
  for (const void* const kernel : kernels) {
    cudaFuncAttributes attributes{};
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t launch_initiator(const Rounds& rounds, Scope scope, cudaStream_t stream) {
  return scope == Scope::thread ? launch_initiate<Scope::thread>(rounds, stream)
         : scope == Scope::warp ? launch_initiate<Scope::warp>(rounds, stream)
                                : launch_initiate<Scope::block>(rounds, stream);
}

cudaError_t launch_target(const Rounds& rounds, Scope scope, cudaStream_t stream) {
  return scope == Scope::thread ? launch_answer<Scope::thread>(rounds, stream)
         : scope == Scope::warp ? launch_answer<Scope::warp>(rounds, stream)
                                : launch_answer<Scope::block>(rounds, stream);
}

cudaError_t launch_wide_put(const Rounds& r, std::uint32_t* arrived, cudaStream_t stream) {
  const auto config = config_of(Scope::block, kWideCtas, stream);
  return cudaLaunchKernelEx(&config, put_wide, r.window, r.data, r.bytes, r.before, r.timeout_ns,
                            r.took_ns, r.report, arrived);
}

}  // namespace simple_write
