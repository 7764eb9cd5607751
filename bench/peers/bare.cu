// The bare calls that linkspan and its peers stand beside, with their loops in C++: cudaMemcpyAsync
// over CUDA IPC, a kernel that reads a list of pages, process_vm_writev. bare_side.py loads it.
// Each function returns 0, or what bare_error() names.
#include <cuda_runtime.h>
#include <sys/uio.h>
#include <time.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace {

constexpr int kCtas = 132, kThreads = 512;

struct Page {
  std::uint64_t to, from;
};

/// A warp copies a page at a time, 16 bytes a lane.
__global__ void copy_pages(const Page* list, unsigned count, std::uint64_t page_bytes) {
  const unsigned warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  const unsigned warps = gridDim.x * blockDim.x / 32;
  for (unsigned i = warp; i < count; i += warps) {
    const Page page = list[i];
    auto* to = reinterpret_cast<uint4*>(page.to);
    const auto* from = reinterpret_cast<const uint4*>(page.from);
#pragma unroll 8
    for (std::uint64_t at = lane; at < page_bytes / 16; at += 32) to[at] = from[at];
  }
}

std::int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

/// Takes the time of each of so many calls, and stops at the first that fails.
template <typename Once>
int timed(int runs, std::int64_t* times, Once once) {
  for (int i = 0; i < runs; ++i) {
    const std::int64_t begin = now();
    if (const int error = once(); error != 0) return error;
    times[i] = now() - begin;
  }
  return 0;
}

struct Gpu {
  cudaStream_t stream;
  Page* list;  // in pinned memory that the GPU maps
};

Gpu gpu;

}  // namespace

extern "C" {

const char* bare_error(int error) {
  return error < 0 ? strerror(-error) : cudaGetErrorString(static_cast<cudaError_t>(error));
}

int bare_start(int device, unsigned pages) {
  if (const auto e = cudaSetDevice(device); e != cudaSuccess) return e;
  if (const auto e = cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking)) return e;
  return cudaHostAlloc(reinterpret_cast<void**>(&gpu.list), pages * sizeof(Page),
                       cudaHostAllocMapped);
}

int bare_stop() {
  const auto stream = cudaStreamDestroy(gpu.stream), list = cudaFreeHost(gpu.list);
  return stream != cudaSuccess ? stream : list;
}

int bare_export(void* memory, void* handle) {
  return cudaIpcGetMemHandle(static_cast<cudaIpcMemHandle_t*>(handle), memory);
}

int bare_import(const void* handle, void** memory) {
  cudaIpcMemHandle_t copy;
  std::memcpy(&copy, handle, sizeof copy);
  return cudaIpcOpenMemHandle(memory, copy, cudaIpcMemLazyEnablePeerAccess);
}

int bare_close(void* memory) { return cudaIpcCloseMemHandle(memory); }

/// Copies `pieces` neighbours of `bytes` one after the other, and waits for all.
int bare_copy(void* to, const void* from, std::uint64_t bytes, int pieces, int runs,
              std::int64_t* times) {
  return timed(runs, times, [&]() -> int {
    for (int i = 0; i < pieces; ++i)
      if (const auto e = cudaMemcpyAsync(static_cast<char*>(to) + i * bytes,
                                         static_cast<const char*>(from) + i * bytes, bytes,
                                         cudaMemcpyDefault, gpu.stream))
        return e;
    return cudaStreamSynchronize(gpu.stream);
  });
}

/// Writes the list into mapped memory, launches one kernel and waits for it.
int bare_pages(const void* list, unsigned count, std::uint64_t page_bytes, int runs,
               std::int64_t* times) {
  return timed(runs, times, [&]() -> int {
    std::memcpy(gpu.list, list, count * sizeof(Page));
    copy_pages<<<kCtas, kThreads, 0, gpu.stream>>>(gpu.list, count, page_bytes);
    if (const auto e = cudaGetLastError(); e != cudaSuccess) return e;
    return cudaStreamSynchronize(gpu.stream);
  });
}

int bare_process_vm(int pid, void* local, void* remote, std::uint64_t bytes, int write, int runs,
                    std::int64_t* times) {
  return timed(runs, times, [&]() -> int {
    const iovec here{local, bytes}, there{remote, bytes};
    const auto moved = write ? process_vm_writev(pid, &here, 1, &there, 1, 0)
                             : process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (moved < 0) return -errno;
    return moved == static_cast<ssize_t>(bytes) ? 0 : -EIO;
  });
}

}  // extern "C"
