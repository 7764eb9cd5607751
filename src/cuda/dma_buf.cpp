#include "cuda/dma_buf.hpp"

namespace linkspan::cuda {

Result<base::Fd> export_dma_buf(const DeviceScope& scope, std::uint64_t address,
                                std::uint64_t bytes) {
  const Driver& driver = scope.driver();
  if (driver.cuMemGetHandleForAddressRange == nullptr)
    return Status(Code::unsupported, Scope::request,
                  "the CUDA driver exports no DMA-BUF: it is older than 11.7");
  int fd = -1;
  const CUresult r = driver.cuMemGetHandleForAddressRange(&fd, address, bytes,
                                                          CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuMemGetHandleForAddressRange");
  return base::Fd(fd);
}

Status flush_network_writes(const DeviceScope& scope) {
  const Driver& driver = scope.driver();
  if (driver.cuFlushGPUDirectRDMAWrites == nullptr)
    return {Code::unsupported, Scope::request,
            "the CUDA driver flushes no writes of network cards: it is older than 11.3"};
  return to_status(
      driver,
      driver.cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                        CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
      "cuFlushGPUDirectRDMAWrites");
}

}  // namespace linkspan::cuda
