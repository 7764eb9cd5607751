// tools/linkspan/pair/shape.hpp - the layout of the bytes of one transfer: one piece, blocks,
// pages.
//
// A Shape is a short text that both processes read. The position of each piece follows from it
// alone, so each process knows what its memory must contain.
// Threads: values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "linkspan/types.hpp"

namespace linkspan::tool {

inline constexpr std::uint64_t kKiB = std::uint64_t{1} << 10, kMiB = kKiB << 10, kGiB = kMiB << 10;

enum class Form : std::uint8_t {
  blocks,  ///< Equal blocks, which arrive in reverse order: none continues another.
  pages,   ///< Equal pages, scattered on both sides.
  odd,     ///< Blocks of odd sizes from 1 B to 64 MiB, scattered on the side that receives.
};

struct Shape {
  Form form = Form::blocks;
  std::uint64_t count = 1;  ///< Number of pieces; at least 1.
  std::uint64_t bytes = 0;  ///< Bytes of one piece; for `odd`, the limit of all together.
  unsigned regions = 1;     ///< Pairs of regions of one transfer; each pair has these pieces.

  std::string name() const;  ///< "1GiB", "16x1MiB", "8192x4KiB", "10000xodd"; "122x67" of regions.
  std::string encode() const;  ///< Describes one pair of regions.
  static std::optional<Shape> decode(std::string_view text);
  friend bool operator==(const Shape&, const Shape&) = default;
};

/// A range of the destination that contains the data of `seed` from position `from` on.
struct Tile {
  std::uint64_t bytes, seed, from;
};

struct Layout {
  struct Piece {
    std::uint64_t from, to, bytes;
  };
  std::vector<Piece> pieces;                        ///< By ascending `to`.
  std::vector<std::uint32_t> from_index, to_index;  ///< For pages, in transfer order.
  std::uint64_t page_bytes = 0;                     ///< Zero: no pages.
  std::uint64_t payload = 0;                        ///< Bytes of all pieces.
  std::uint64_t extent = 0;  ///< Bytes of the range that contains all pieces, on either side.

  static Layout of(const Shape& shape);
  bool gaps() const noexcept { return payload != extent; }
  /// Returns the destination's contents after the transfer. Source and destination begin at `base`;
  /// before, they were filled by position with the seeds `sent` and `before`.
  std::vector<Tile> tiles(std::uint64_t base, std::uint64_t sent, std::uint64_t before) const;
};

}  // namespace linkspan::tool
