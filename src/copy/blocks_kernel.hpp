// copy/blocks_kernel.hpp - launches the kernel of kernels/copy_blocks.cu on a list of pieces.
//
// GpuCopier, Staging and Calibration use it where many small pieces are cheaper by a kernel.
// Threads: the thread that owns the stream and the list.
// Invariants: a list belongs to its launch until the stream has passed it.
#pragma once

#include <cstdint>
#include <span>

#include "copy/copier.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"

namespace linkspan::copy {

/// Holds what a launch reads and writes beside the data.
struct BlockList {
  std::span<Piece> entries;          ///< Pinned memory.
  cuda::CUdeviceptr address = 0;     ///< Address of `entries` as the kernel sees it.
  cuda::CUdeviceptr abort_flag = 0;  ///< A u32 in the GPU's memory; non-zero stops the kernel.
  cuda::CUdeviceptr aborted = 0;     ///< A u32 that the kernel sets when it was stopped.
};

/// Returns the size of the entries into which pieces are cut: small enough to give every warp work,
/// large enough for the list, 64 KiB at most.
std::uint64_t entry_bytes(std::uint64_t pieces, std::uint64_t bytes, std::uint64_t warps,
                          std::uint64_t list) noexcept;

/// Launches the kernel. Pieces of more than 64 KiB take several entries, and more are cut so that
/// all warps have work. Requires: the kernel is loaded, `most_ctas` is not 0, and the list has room
/// for entries of 64 KiB.
Status launch_blocks(const cuda::DeviceScope& scope, const cuda::Stream& stream,
                     const cuda::Device& device, unsigned most_ctas, const BlockList& list,
                     std::span<const Piece> pieces, std::uint64_t bytes);

}  // namespace linkspan::copy
