// engine/router.hpp - one submission as batches that a transport takes.
//
// Pure: blocks, pages or strides and capabilities in, a plan out. It reads Capabilities and never a
// name. On the path of a byte between the user's call and Endpoint::post.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <variant>
#include <vector>

#include "transport/transport.hpp"

namespace linkspan::engine {

/// What the user gives.
using UserShape = std::variant<std::span<const Block>, Pages, Strides>;

/// Of these three that which is not empty.
struct Plan {
  std::size_t batches = 1;
  std::vector<Block> blocks;        ///< Cut so that each fits a batch.
  std::vector<std::size_t> ends;    ///< Batch i has the blocks before ends[i], the last the rest.
  Pages pages;                      ///< The lists are the user's until keep().
  std::vector<std::uint32_t> kept;  ///< His lists, one behind the other.
  Strides strides;
  GpuUuid indices_gpu{};               ///< Batch::indices_gpu
  std::uint64_t pieces = 0;            ///< Pages, or blocks of strides, perhaps cut;
  std::uint64_t pieces_per_batch = 0;  ///< so many in each batch but the last,
  std::uint64_t piece_bytes = 0;       ///< of at most so many bytes.
  bool checked = false;                ///< Against both regions.

  /// Strides become blocks here, in `scratch`: 24 bytes a block are written for the batch, 24 in
  /// the kernel's list, and never those of more than one batch at a time.
  transport::BatchShape batch(std::size_t i, std::vector<Block>& scratch) const;
  std::uint64_t first(std::size_t batch) const noexcept { return batch * pieces_per_batch; }
  /// What is left of the plan outlives the user's lists; those on a GPU stay anyway.
  void keep();
};

Plan make_plan(std::vector<Block> blocks, const transport::Capabilities& limits);
/// Of pages that were checked; pages that are larger than a batch become blocks.
Plan make_plan(const Pages& pages, const transport::Capabilities& limits);
/// Of pages that were checked those at `positions`, whose lists the plan keeps. invalid_argument:
/// there is no such position.
Result<Plan> make_plan(const Pages& pages, std::span<const std::uint32_t> positions,
                       const transport::Capabilities& limits);
/// Of strides that were checked.
Plan make_plan(const Strides& strides, const transport::Capabilities& limits);

}  // namespace linkspan::engine
