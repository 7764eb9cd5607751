// tools/linkspan/pair/shape.hpp - how the bytes of one transfer lie: in one piece, in blocks, in
// pages.
//
// A Shape is a few words that both processes read; where each piece lies follows from it alone, so
// that each of them can say what must be in its memory.
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
  std::uint64_t count = 1;  ///< Of pieces; at least 1.
  std::uint64_t bytes = 0;  ///< Of one. Odd: of all together, at most.

  std::string name() const;  ///< "1GiB", "16x1MiB", "8192x4KiB", "10000xodd".
  std::string encode() const;
  static std::optional<Shape> decode(std::string_view text);
};

/// A stretch of the destination: what `seed` is at `from` and after.
struct Tile {
  std::uint64_t bytes, seed, from;
};

struct Layout {
  struct Piece {
    std::uint64_t from, to, bytes;
  };
  std::vector<Piece> pieces;  ///< By ascending `to`. Those of pages have none that equals theirs.
  std::vector<std::uint32_t> from_index, to_index;  ///< Of pages, in the order in which they go.
  std::uint64_t page_bytes = 0;                     ///< Zero: no pages.
  std::uint64_t payload = 0;                        ///< Of all pieces.
  std::uint64_t extent = 0;                         ///< In which they lie, on either side.

  static Layout of(const Shape& shape);
  bool gaps() const noexcept { return payload != extent; }
  /// The destination afterwards, if it begins at `base` of its memory, as the source does; both
  /// memories were filled with a seed at their own positions: the source's, the destination's.
  std::vector<Tile> tiles(std::uint64_t base, std::uint64_t sent, std::uint64_t before) const;
};

}  // namespace linkspan::tool
