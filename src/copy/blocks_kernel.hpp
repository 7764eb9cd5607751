// copy/blocks_kernel.hpp - one launch of the kernel of kernels/copy_blocks.cu on a list of pieces.
//
// Threads: of whoever has the stream and the list.
#pragma once

#include <cstdint>
#include <span>

#include "copy/copier.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"

namespace linkspan::copy {

/// What a launch reads and writes beside the data; the launch's until the stream has passed it.
struct BlockList {
  std::span<Piece> entries;          ///< Pinned memory.
  cuda::CUdeviceptr address = 0;     ///< The same as the kernel sees it.
  cuda::CUdeviceptr abort_flag = 0;  ///< A u32 in the GPU's memory; not zero: stop.
  cuda::CUdeviceptr aborted = 0;     ///< A u32 that the kernel sets when it has stopped so.
};

/// Into entries of how many bytes pieces are cut: as fine as it takes to give every warp work, as
/// coarse as the list is long, 64 KiB at most.
std::uint64_t entry_bytes(std::uint64_t pieces, std::uint64_t bytes, std::uint64_t warps,
                          std::uint64_t list) noexcept;

/// Pieces of more than 64 KiB take more than one entry, and more are cut so that all warps have
/// work. Requires: the kernel is loaded, a CTA, and the list is long enough for the 64 KiB.
Status launch_blocks(const cuda::DeviceScope& scope, const cuda::Stream& stream,
                     const cuda::Device& device, unsigned most_ctas, const BlockList& list,
                     std::span<const Piece> pieces, std::uint64_t bytes);

}  // namespace linkspan::copy
