// transport/batch.hpp - the checks of blocks and pages, once for every transport.
//
// On the path of a byte: the first thing that Endpoint::post does with what the user gave.
// Threads: pure functions.
#pragma once

#include <span>
#include <variant>
#include <vector>

#include "transport/transport.hpp"

namespace linkspan::transport {

/// The batch as blocks, each within both regions, none empty. invalid_argument names the first that
/// is wrong: a block that leaves a region (also when a sum overflows), index lists of different
/// lengths, more blocks or bytes than `limits` allow.
Result<std::vector<Block>> checked_blocks(const Batch& batch, const Capabilities& limits);

/// The same for a list whose regions are `here` and `there` bytes long.
Result<std::vector<Block>> checked_blocks(const BatchShape& shape, std::uint64_t here,
                                          std::uint64_t there, const Capabilities& limits);

/// The same for pages, which stay what they are: at most max_batch_pages, each within both regions.
/// Costs a nanosecond for four pages.
Status check_pages(const Pages& pages, std::uint64_t here, std::uint64_t there,
                   const Capabilities& limits);

/// Of pages that were checked; none without bytes.
std::vector<Block> blocks_of(const Pages& pages);

Shape shape_of(std::span<const Block> blocks) noexcept;
Shape shape_of(const Pages& pages) noexcept;  ///< Of pages that were checked.

}  // namespace linkspan::transport
