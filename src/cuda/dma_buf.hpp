// cuda/dma_buf.hpp - memory of GPUs for network cards, which read and write it over PCIe.
//
// Off the path of a byte, but for the flush.
// Threads: any thread; the context of the GPU is current.
#pragma once

#include <cstdint>

#include "base/fd.hpp"
#include "cuda/device_scope.hpp"

namespace linkspan::cuda {

/// Exports a range of an allocation as a DMA-BUF; both numbers are multiples of the host's page
/// (fact: Identity.DeviceMemoryIsExportedAsADmaBufInPagesOfTheHost).
/// The memory stays allocated as long as the DMA-BUF is open or registered. unsupported: the driver
/// or the GPU has no such export.
Result<base::Fd> export_dma_buf(const DeviceScope& scope, std::uint64_t address,
                                std::uint64_t bytes);

/// Makes visible to the GPU what network cards wrote to its memory before. Takes 0.6 us on an H200.
Status flush_network_writes(const DeviceScope& scope);

}  // namespace linkspan::cuda
