// engine/transfers/router.hpp - cuts one submission into batches that a transport accepts.
//
// On the path of a byte: between the user's call and Endpoint::post. Reads Capabilities, never the
// name of a transport.
// Threads: pure functions.
// Invariants: each batch is within the transport's Capabilities.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "transport/transport.hpp"

namespace linkspan::engine {

/// Exactly one of blocks, pages and strides is used.
struct Plan {
  std::size_t batches = 1;
  std::vector<Block> blocks;        ///< Each fits into a batch.
  std::vector<std::size_t> ends;    ///< Batch i ends before block ends[i]; the last has the rest.
  Pages pages;                      ///< The lists are the user's until keep().
  std::vector<std::uint32_t> kept;  ///< Copies of the lists, local then remote.
  Strides strides;
  GpuUuid indices_gpu{};               ///< Batch::indices_gpu
  std::uint64_t pieces = 0;            ///< Number of pages, or of (perhaps cut) blocks of strides.
  std::uint64_t pieces_per_batch = 0;  ///< The last batch may have fewer.
  std::uint64_t piece_bytes = 0;       ///< Upper bound of a piece's size.
  bool checked = false;                ///< Checked against both regions.

  /// Returns batch `i`. Strides are expanded into blocks in `scratch`, one batch at a time: 24
  /// bytes a block here, and 24 in the kernel's list.
  transport::BatchShape batch(std::size_t i, std::vector<Block>& scratch) const;
  std::uint64_t first(std::size_t batch) const noexcept { return batch * pieces_per_batch; }
  /// Copies the user's page lists, so that the plan outlives them. Lists on a GPU are not copied.
  void keep();
};

/// Cuts blocks that were checked; drops empty ones.
Plan make_plan(std::vector<Block> blocks, const transport::Capabilities& limits);
/// Cuts pages that were checked. Pages larger than a batch become blocks.
Plan make_plan(const Pages& pages, const transport::Capabilities& limits);
/// Cuts the pages at `positions` of pages that were checked; the plan owns their lists.
/// invalid_argument: there is no such position.
Result<Plan> make_plan(const Pages& pages, std::span<const std::uint32_t> positions,
                       const transport::Capabilities& limits);
/// Cuts strides that were checked.
Plan make_plan(const Strides& strides, const transport::Capabilities& limits);

}  // namespace linkspan::engine
