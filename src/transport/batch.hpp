// transport/batch.hpp - the checks of blocks, pages and strides, once for every transport.
//
// On the path of a byte: the first step of Endpoint::post on what the user passed.
// Threads: pure functions.
// Invariants: what these functions accept stays within both regions and within the limits.
#pragma once

#include <span>
#include <vector>

#include "transport/transport.hpp"

namespace linkspan::transport {

/// Returns invalid_argument if the block leaves a region of `here` or `there` bytes, also if a sum
/// overflows.
Status check_block(const Block& block, std::uint64_t here, std::uint64_t there);

/// Returns the list without empty blocks, with neighbours joined that continue each other on both
/// sides. Each block lies within regions of `here` and `there` bytes.
/// invalid_argument names the first wrong block, or that there are more blocks or bytes than
/// `limits` allow.
Result<std::vector<Block>> checked_blocks(std::span<const Block> list, std::uint64_t here,
                                          std::uint64_t there, const Capabilities& limits);

/// Checks pages likewise; index lists of different lengths are wrong too. Costs a nanosecond for
/// eight pages with AVX2. Does not read lists on a GPU: their reader checks each
/// index against last_page().
Status check_pages(const Pages& pages, std::uint64_t here, std::uint64_t there,
                   const Capabilities& limits);

/// A checked shape: pages as they are, or blocks.
struct CheckedShape {
  const Pages* pages = nullptr;     ///< The shape's own. Null: see blocks().
  std::span<const Block> borrowed;  ///< The shape's blocks, if `owned` is empty.
  std::vector<Block> owned;         ///< Replaces `borrowed`.
  BatchSummary size;

  std::span<const Block> blocks() const noexcept { return owned.empty() ? borrowed : owned; }
};
/// Wraps a shape that was checked before.
CheckedShape already_checked(const BatchShape& shape);
/// Checks blocks by checked_blocks(), pages by check_pages().
Result<CheckedShape> check_shape(const BatchShape& shape, std::uint64_t here, std::uint64_t there,
                                 const Capabilities& limits);

/// Checks strides likewise, with any number of blocks. Strides without blocks leave no region.
Status check_strides(const Strides& strides, std::uint64_t here, std::uint64_t there,
                     const Capabilities& limits);

/// Joins blocks that follow each other on both sides into fewer, larger ones. Requires checked
/// strides.
Strides merged(Strides strides) noexcept;

/// Cuts checked strides into blocks of at most `max_bytes` bytes. Replaces the content of `blocks`
/// by `count` of them, from number `first` on.
void some_blocks(const Strides& strides, std::uint64_t first, std::uint64_t count,
                 std::uint64_t max_bytes, std::vector<Block>& blocks);

/// Returns the highest index of a page after `base` in a region of `size` bytes. Requires checked
/// pages that have bytes.
std::uint32_t last_page(std::uint64_t base, std::uint64_t page_bytes, std::uint64_t size) noexcept;

/// Converts checked pages to blocks. Requires indices that a CPU can read. Returns no block for
/// pages of 0 bytes.
std::vector<Block> blocks_of(const Pages& pages);
/// Requires page lists that are not on a GPU.
std::vector<Block> blocks_of(const BatchShape& shape);

BatchSummary summary_of(std::span<const Block> blocks) noexcept;
BatchSummary summary_of(const Pages& pages) noexcept;      ///< Requires checked pages.
BatchSummary summary_of(const Strides& strides) noexcept;  ///< Requires checked strides.

}  // namespace linkspan::transport
