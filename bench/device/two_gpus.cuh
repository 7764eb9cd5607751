// bench/device/two_gpus.cuh - two GPUs of one process with windows onto each other, made by hand:
// for what measures and tests the device headers alone.
//
// Threads: the main thread. A failure ends the program: it is a tool.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "linkspan/device/packet.cuh"

namespace {

using namespace linkspan::device;  // NOLINT(google-build-using-namespace)

constexpr unsigned kThreads = 512;
constexpr std::uint64_t kLarge = std::uint64_t{1} << 30;
void must(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}

/// One GPU, with its side of a window onto the other's.
struct Side {
  int device = 0;
  unsigned char *data = nullptr, *source = nullptr, *pad = nullptr;
  std::uint64_t* took = nullptr;  // of each round, and behind them words for results
  std::uint32_t* words = nullptr;
  cudaStream_t stream = nullptr, noise = nullptr;
  Window window{};
};

__device__ unsigned expected(std::uint64_t round, std::uint64_t i) {
  return static_cast<unsigned>((i * 0x9E3779B97F4A7C15ull + round * 0xD1B54A32D192ED03ull) >> 32);
}

__global__ void fill(unsigned* words, std::uint64_t count, std::uint64_t round) {
  for (std::uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += std::uint64_t{gridDim.x} * blockDim.x)
    words[i] = expected(round, i);
}
__global__ void count_wrong(const unsigned* words, std::uint64_t count, std::uint64_t round,
                            unsigned* wrong) {
  for (std::uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += std::uint64_t{gridDim.x} * blockDim.x)
    if (words[i] != expected(round, i)) atomicAdd(wrong, 1);
}

class TwoGpus {
 protected:
  static constexpr std::uint32_t kRounds = 2000;

  explicit TwoGpus(const PadLayout& layout) : layout_(layout) {
    for (int i = 0; i < 2; ++i) {
      Side& s = sides_[i];
      s.device = i;
      must(cudaSetDevice(i), "cudaSetDevice");
      must(cudaDeviceEnablePeerAccess(1 - i, 0), "cudaDeviceEnablePeerAccess");
      allocate(s.data, kLarge);
      allocate(s.source, kLarge);
      allocate(s.pad, layout_.bytes());
      allocate(s.took, 8 * (kRounds + 1));
      allocate(s.words, 256);
      must(cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking), "cudaStreamCreate");
      must(cudaStreamCreateWithFlags(&s.noise, cudaStreamNonBlocking), "cudaStreamCreate");
      must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
    for (int i = 0; i < 2; ++i) {
      Window& w = sides_[i].window;
      const Side &own = sides_[i], &other = sides_[1 - i];
      w.remote = other.data;
      w.remote_bytes = w.local_bytes = kLarge;
      w.local = own.data;
      w.remote_pad = other.pad;
      w.local_pad = own.pad;
      w.layout = layout_;
      w.atomics = 1;
    }
  }

  /// Copies on the same link, both ways, beside what runs next.
  void make_noise(int copies) {
    for (Side& s : sides_) {
      must(cudaSetDevice(s.device), "cudaSetDevice");
      for (int k = 0; k < copies; ++k)
        must(cudaMemcpyAsync(sides_[1 - s.device].source + (64 << 20), s.source + (512 << 20),
                             4 << 20, cudaMemcpyDefault, s.noise),
             "noise");
    }
  }

  /// Waits for both; the words that kernels set say whether all went well.
  void finish() {
    for (Side& s : sides_) {
      must(cudaSetDevice(s.device), "cudaSetDevice");
      must(cudaStreamSynchronize(s.stream), "cudaStreamSynchronize");
      std::uint32_t words[2] = {};  // failed, wrong
      must(cudaMemcpy(words, s.words, sizeof words, cudaMemcpyDefault), "cudaMemcpy");
      if (words[0] == 0 && words[1] == 0) continue;
      std::printf("{\"failed\": %u, \"wrong\": %u, \"gpu\": %d}\n", words[0], words[1], s.device);
      std::exit(1);
    }
  }

  const PadLayout layout_;
  Side sides_[2];

 private:
  template <class T>
  static void allocate(T*& to, std::uint64_t bytes) {
    must(cudaMalloc(reinterpret_cast<void**>(&to), bytes), "cudaMalloc");
    must(cudaMemset(to, 0, bytes), "cudaMemset");
  }
};

}  // namespace
