#include "tools/linkspan/pair/shape.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <sstream>

#include "tools/linkspan/command_line/table.hpp"

namespace linkspan::tool {
namespace {

constexpr std::array kForms = {"blocks", "pages", "odd"};
constexpr std::uint64_t kMaxOdd = (std::uint64_t{64} << 20) - 1;
constexpr std::uint64_t kGap = 13;  // between odd blocks in the destination

using Random = std::mt19937_64;  // gives the same numbers in both processes

/// Returns the first `count` elements of a shuffled 0 .. pages - 1.
std::vector<std::uint32_t> scattered(Random& random, std::uint64_t count, std::uint64_t pages) {
  std::vector<std::uint32_t> out(pages);
  std::iota(out.begin(), out.end(), 0u);
  // Not std::shuffle, whose order depends on the library.
  for (std::uint64_t i = 0; i < count; ++i) std::swap(out[i], out[i + random() % (pages - i)]);
  out.resize(count);
  return out;
}

/// Lays out pages at random. A fifth of the places on either side stays free.
void lay_out_pages(const Shape& shape, Layout& out) {
  Random random(shape.count);
  const std::uint64_t pages = shape.count + shape.count / 4 + 1;
  out.from_index = scattered(random, shape.count, pages);
  out.to_index = scattered(random, shape.count, pages);
  out.page_bytes = shape.bytes;
  out.extent = pages * shape.bytes;
  for (std::uint64_t i = 0; i < shape.count; ++i)
    out.pieces.push_back(
        {out.from_index[i] * shape.bytes, out.to_index[i] * shape.bytes, shape.bytes});
}

/// Lays out odd sizes, evenly distributed over the magnitudes, and reduces them until they fit. One
/// is the largest size, one is 1 B.
void lay_out_odd(const Shape& shape, Layout& out) {
  Random random(shape.count);
  std::vector<double> sizes(shape.count);
  for (double& size : sizes) {
    const double part = static_cast<double>(random() >> 11) / 0x1p53;
    size = std::exp(part * std::log(static_cast<double>(kMaxOdd)));
  }
  const std::uint64_t most = std::min(kMaxOdd, std::max<std::uint64_t>(shape.bytes / 4, 1) | 1);
  const double all = std::accumulate(sizes.begin(), sizes.end(), 0.0);
  const std::uint64_t room = shape.bytes - std::min(shape.bytes, most + shape.count);
  const double cut = std::min(1.0, static_cast<double>(room) / all);
  std::uint64_t at = 0;
  for (std::uint64_t i = 0; i < shape.count; ++i) {
    std::uint64_t size = std::min(static_cast<std::uint64_t>(sizes[i] * cut) | 1, most);
    if (i == 0) size = 1;
    if (i == 1) size = most;
    out.pieces.push_back({at, 0, size});
    at += size;
  }
  std::uint64_t to = 0;
  for (const std::uint32_t i : scattered(random, shape.count, shape.count)) {
    out.pieces[i].to = to + kGap;
    to += kGap + out.pieces[i].bytes;
  }
  out.extent = to + kGap;
}

void lay_out_blocks(const Shape& shape, Layout& out) {
  for (std::uint64_t i = 0; i < shape.count; ++i)
    out.pieces.push_back({i * shape.bytes, (shape.count - 1 - i) * shape.bytes, shape.bytes});
  out.extent = shape.count * shape.bytes;
}

}  // namespace

std::string Shape::name() const {
  if (regions != 1) return std::to_string(regions) + 'x' + std::to_string(count);
  if (form == Form::blocks && count == 1) return size_name(bytes);
  return std::to_string(count) + 'x' + (form == Form::odd ? "odd" : size_name(bytes));
}

std::string Shape::encode() const {
  return std::string(kForms.at(static_cast<std::size_t>(form))) + ' ' + std::to_string(count) +
         ' ' + std::to_string(bytes);
}

std::optional<Shape> Shape::decode(std::string_view text) {
  std::istringstream fields{std::string(text)};
  std::string form;
  Shape out;
  if (!(fields >> form >> out.count >> out.bytes) || out.count == 0) return std::nullopt;
  const auto* const known = std::find(kForms.begin(), kForms.end(), form);
  if (known == kForms.end()) return std::nullopt;
  out.form = static_cast<Form>(known - kForms.begin());
  return out;
}

Layout Layout::of(const Shape& shape) {
  Layout out;
  out.pieces.reserve(shape.count);
  if (shape.form == Form::pages) lay_out_pages(shape, out);
  if (shape.form == Form::odd) lay_out_odd(shape, out);
  if (shape.form == Form::blocks) lay_out_blocks(shape, out);
  std::sort(out.pieces.begin(), out.pieces.end(),
            [](const Piece& a, const Piece& b) { return a.to < b.to; });
  for (const Piece& piece : out.pieces) out.payload += piece.bytes;
  return out;
}

std::vector<Tile> Layout::tiles(std::uint64_t base, std::uint64_t sent,
                                std::uint64_t before) const {
  std::vector<Tile> out;
  out.reserve(2 * pieces.size() + 1);
  std::uint64_t at = 0;
  for (const Piece& piece : pieces) {
    if (piece.to != at) out.push_back({piece.to - at, before, base + at});
    out.push_back({piece.bytes, sent, base + piece.from});
    at = piece.to + piece.bytes;
  }
  if (at != extent) out.push_back({extent - at, before, base + at});
  return out;
}

}  // namespace linkspan::tool
