#include "tests/support/pattern.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

namespace linkspan::test {
namespace {

/// Returns eight bytes of the pattern, by splitmix64.
std::uint64_t word(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t x = (seed << 44 ^ index) + 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

}  // namespace

/// Copies many words at once, because a sanitizer looks at each call of memcpy().
void put_pattern(std::span<std::byte> into, std::uint64_t seed, std::uint64_t position) {
  std::array<std::uint64_t, 512> words;
  while (!into.empty()) {
    const std::size_t skip = position % 8;
    const std::size_t bytes = std::min(sizeof words - skip, into.size());
    for (std::size_t i = 0; 8 * i < skip + bytes; ++i) words[i] = word(seed, position / 8 + i);
    std::memcpy(into.data(), std::as_bytes(std::span(words)).data() + skip, bytes);
    into = into.subspan(bytes);
    position += bytes;
  }
}

std::string first_difference(std::span<const std::byte> held, std::uint64_t seed,
                             std::uint64_t guard, std::span<const Expected> expected,
                             std::span<const Extent> anything) {
  if (held.empty()) return {};
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(held.size());
  const std::span due(memory.get(), held.size());
  put_pattern(due, seed, 0);
  for (const Expected& e : expected)
    put_pattern(due.subspan(guard + e.offset, e.bytes), e.seed, guard + e.from);
  for (const Extent& e : anything)
    std::memcpy(due.data() + guard + e.offset, held.data() + guard + e.offset, e.bytes);
  if (std::memcmp(held.data(), due.data(), held.size()) == 0) return {};
  const auto [wrong, right] = std::mismatch(held.begin(), held.end(), due.begin());
  const auto at =
      static_cast<std::int64_t>(wrong - held.begin() - static_cast<std::int64_t>(guard));
  std::size_t count = 0;
  for (std::size_t i = 0; i < held.size(); ++i) count += held[i] != due[i] ? 1 : 0;
  return std::to_string(count) + " wrong bytes, the first at region offset " + std::to_string(at) +
         ": " + std::to_string(std::to_integer<int>(*wrong)) + " where " +
         std::to_string(std::to_integer<int>(*right)) + " is due";
}

}  // namespace linkspan::test
