// tests/support/pattern.hpp - data in which every byte that landed wrongly shows.
//
// A seed and a position make a byte; there is no short period, so that a page in the place of
// another shows, and each seed is fresh data.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace linkspan::test {

/// Expects `bytes` bytes at `offset` to be what memory with the pattern of `seed` has at `from`.
struct Expected {
  std::uint64_t offset = 0, seed = 0, from = 0, bytes = 0;
};

/// Bytes that may hold anything: a transfer that was ended early wrote them, or some, or none.
struct Extent {
  std::uint64_t offset = 0, bytes = 0;
};

/// Writes bytes `position`, `position` + 1, ... of the pattern of `seed`.
void put_pattern(std::span<std::byte> into, std::uint64_t seed, std::uint64_t position);

/// Returns an empty text if all of `held` is the pattern of `seed`, except what `expected` says
/// (the later line wins) and `anything`. Else names the first wrong byte. `held` begins `guard`
/// bytes before offset 0.
std::string first_difference(std::span<const std::byte> held, std::uint64_t seed,
                             std::uint64_t guard, std::span<const Expected> expected,
                             std::span<const Extent> anything = {});

}  // namespace linkspan::test
