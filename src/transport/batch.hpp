// transport/batch.hpp - the checks of blocks, pages and strides, once for every transport.
//
// On the path of a byte: the first thing that Endpoint::post does with what the user gave.
// Threads: pure functions.
#pragma once

#include <span>
#include <vector>

#include "transport/transport.hpp"

namespace linkspan::transport {

/// The list without its empty blocks, each within regions of `here` and `there` bytes; neighbours
/// that continue each other on both sides are one.
/// invalid_argument names the first that is wrong: a block that leaves a region (also when a sum
/// overflows), more blocks or bytes than `limits` allow.
Result<std::vector<Block>> checked_blocks(std::span<const Block> list, std::uint64_t here,
                                          std::uint64_t there, const Capabilities& limits);

/// The same for pages, which stay what they are; index lists of different lengths are wrong too.
/// Costs a nanosecond for four pages. Lists on a GPU are not read: that no index is above
/// last_page() is for who reads them.
Status check_pages(const Pages& pages, std::uint64_t here, std::uint64_t there,
                   const Capabilities& limits);

/// What of a shape was checked.
struct CheckedShape {
  const Pages* pages = nullptr;     ///< The shape's own; null: it is in blocks().
  std::span<const Block> borrowed;  ///< Those of the shape, or
  std::vector<Block> owned;         ///< in their place.
  BatchSummary size;

  std::span<const Block> blocks() const noexcept { return owned.empty() ? borrowed : owned; }
};
/// Of a shape that was checked before.
CheckedShape already_checked(const BatchShape& shape);
/// Either of the two above.
Result<CheckedShape> check_shape(const BatchShape& shape, std::uint64_t here, std::uint64_t there,
                                 const Capabilities& limits);

/// The same for strides, whose blocks may be any number. What has no blocks leaves no region.
Status check_strides(const Strides& strides, std::uint64_t here, std::uint64_t there,
                     const Capabilities& limits);

/// Of strides that were checked, the same bytes in fewer and larger blocks where such lie one
/// behind the other on both sides.
Strides merged(Strides strides) noexcept;

/// Of strides that were checked, cut into pieces of at max_bytes `max_bytes` bytes: of these
/// `count` from the `first` on, in place of what `blocks` held.
void some_blocks(const Strides& strides, std::uint64_t first, std::uint64_t count,
                 std::uint64_t max_bytes, std::vector<Block>& blocks);

/// The highest index of a page behind `base` in a region of `size` bytes. Of pages that were
/// checked, and with bytes.
std::uint32_t last_page(std::uint64_t base, std::uint64_t page_bytes, std::uint64_t size) noexcept;

/// Of pages that were checked, with indices that a CPU can read; none without bytes.
std::vector<Block> blocks_of(const Pages& pages);

BatchSummary summary_of(std::span<const Block> blocks) noexcept;
BatchSummary summary_of(const Pages& pages) noexcept;      ///< Of pages that were checked.
BatchSummary summary_of(const Strides& strides) noexcept;  ///< Of strides that were checked.

}  // namespace linkspan::transport
