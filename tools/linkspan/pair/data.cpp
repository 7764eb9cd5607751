#include "tools/linkspan/pair/data.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace linkspan::tool {
namespace {

constexpr std::uint64_t kCheckBytes = std::uint64_t{64} << 10;  // stays in the cache

/// Returns eight bytes of the data by the finaliser of splitmix64 (Steele, Lea, Flood 2014).
std::uint64_t u64_at(std::uint64_t seed, std::uint64_t index) noexcept {
  std::uint64_t z = (seed + index) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  return z ^ (z >> 27);
}

}  // namespace

void put_data(std::span<std::byte> into, std::uint64_t seed, std::uint64_t position) noexcept {
  // seeds are small, so that the streams of two seeds do not overlap
  const std::uint64_t base = seed << 32;
  const auto put = [&](std::size_t count) {
    const std::uint64_t value = u64_at(base, position / 8);
    std::memcpy(into.data(), reinterpret_cast<const std::byte*>(&value) + position % 8, count);
    into = into.subspan(count);
    position += count;
  };
  put(std::min<std::size_t>(8 - position % 8, into.size()));
  while (into.size() >= 8) put(8);
  put(into.size());
}

std::uint64_t first_difference(std::span<const std::byte> actual, std::uint64_t seed,
                               std::uint64_t position) {
  std::vector<std::byte> expected(std::min<std::uint64_t>(actual.size(), kCheckBytes));
  for (std::uint64_t at = 0; at < actual.size(); at += expected.size()) {
    const auto part =
        actual.subspan(at, std::min<std::uint64_t>(expected.size(), actual.size() - at));
    put_data(std::span(expected).first(part.size()), seed, position + at);
    if (std::memcmp(part.data(), expected.data(), part.size()) == 0) continue;
    const auto wrong = std::mismatch(part.begin(), part.end(), expected.begin()).first;
    return at + static_cast<std::uint64_t>(wrong - part.begin()) + 1;
  }
  return 0;
}

}  // namespace linkspan::tool
