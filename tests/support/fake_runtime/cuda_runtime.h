// tests/support/fake_runtime/cuda_runtime.h - as much of the CUDA runtime as the examples call,
// over whichever driver LINKSPAN_CUDA_LIBRARY names: so that their programs run over the simulated
// one.
//
// A kernel is compiled for the host and runs as one lane, whatever its grid. Its arguments are
// translated: pointers, and those in a device::Window, to where this CPU sees what they point to.
// Threads: as the runtime's, but all streams are of the device that was set last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "linkspan/device/proxy.cuh"

#define __global__
#define __launch_bounds__(...)

using cudaError_t = int;
using cudaStream_t = void*;
inline constexpr cudaError_t cudaSuccess = 0, cudaErrorNoDevice = 100;
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
inline constexpr unsigned cudaStreamNonBlocking = 1;
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};
struct cudaFuncAttributes {};
struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
};
inline constexpr dim3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0};

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMalloc(void** memory, std::size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes);
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
/// Loads a kernel on the device that was set last. A launch loads it too, but waits until no other
/// kernel runs there (docs/cuda_notes.md, "Lazy loading").
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel);

namespace fake_runtime {

/// Maps a pointer to where this CPU sees it; leaves a pointer that no kernel reaches unchanged.
using See = std::function<void*(const void*)>;
/// Runs `code`, which is of the kernel `function`.
cudaError_t run(cudaStream_t stream, const void* function, std::function<void(const See&)> code);

template <class T>
T seen(const See& see, T value) {
  if constexpr (std::is_pointer_v<T>)
    return static_cast<T>(see(value));
  else
    return value;
}
inline linkspan::device::Window seen(const See& see, linkspan::device::Window window) {
  window.remote = seen(see, window.remote);
  window.local = seen(see, window.local);
  window.remote_pad = seen(see, window.remote_pad);
  window.local_pad = seen(see, window.local_pad);
  window.abort = seen(see, window.abort);
  window.proxy.entries = seen(see, window.proxy.entries);
  window.proxy.state = seen(see, window.proxy.state);
  window.proxy.tickets = seen(see, window.proxy.tickets);
  return window;
}

}  // namespace fake_runtime

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return fake_runtime::run(
      config->stream, reinterpret_cast<const void*>(kernel),
      [kernel, values = std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)](
          const fake_runtime::See& see) {
        std::apply([&](auto... each) { kernel(fake_runtime::seen(see, each)...); }, values);
      });
}
