// tests/support/fake_cuda/dma_buf.cpp - the memory of GPUs for network cards.
//
// A DMA-BUF is another open file of the allocation's memfd. Its position is where the range begins:
// the simulated network card reads it there (tests/support/fake_verbs), which maps the memory.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/support/fake_cuda/fake_cuda.hpp"

namespace linkspan::cuda::fake {
namespace {

constexpr std::uint64_t kHostPage = 4096;

/// Shows what simulated network cards of this process have written (fake_verbs/late_memory.cpp).
void flush_simulated_cards() {
  const char* const file = std::getenv("LINKSPAN_VERBS_LIBRARY");
  void* const library = file != nullptr ? dlopen(file, RTLD_NOW | RTLD_NOLOAD) : nullptr;
  if (library == nullptr) return;
  const auto flush = reinterpret_cast<void (*)()>(dlsym(library, "fakeVerbsFlush"));
  if (flush != nullptr) flush();
  dlclose(library);
}

}  // namespace

bool exports_dma_buf() {
  const char* const set = std::getenv("FAKE_CUDA_DMABUF");
  return set == nullptr || std::strcmp(set, "0") != 0;
}

int open_memory(std::uint64_t address, std::uint64_t bytes) {
  const Allocation* const found = find_allocation(address);
  if (found == nullptr || !found->on_device() || bytes == 0) return -1;
  const std::uint64_t offset = address - found->base;
  const std::uint64_t whole = (found->bytes + kHostPage - 1) & ~(kHostPage - 1);
  const int memory = found->chunk ? found->chunk->fd : found->fd;
  if (bytes > whole - offset || memory < 0) return -1;
  const int fd = open(("/proc/self/fd/" + std::to_string(memory)).c_str(), O_RDWR | O_CLOEXEC);
  if (fd >= 0) lseek(fd, static_cast<off_t>(offset), SEEK_SET);
  return fd;
}

/// Pages of the host in one allocation. The real one also takes a range of several chunks.
CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, std::size_t bytes,
                                       unsigned type, unsigned long long flags) {
  Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  if (!exports_dma_buf()) return CUDA_ERROR_NOT_SUPPORTED;
  if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0 || address % kHostPage != 0 ||
      bytes % kHostPage != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const int fd = open_memory(address, bytes);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(handle, &fd, sizeof fd);
  return CUDA_SUCCESS;
}

CUresult cuFlushGPUDirectRDMAWrites(unsigned target, unsigned scope) {
  {
    const Call call;
    if (call.error != CUDA_SUCCESS) return call.error;
  }
  flush_simulated_cards();
  return target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX &&
                 (scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER ||
                  scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace linkspan::cuda::fake
