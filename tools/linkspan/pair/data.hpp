// tools/linkspan/pair/data.hpp - test data in which every misplaced byte shows: each byte is a
// function of a small seed and its position, without a short period.
//
// Threads: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace linkspan::tool {

void put_data(std::span<std::byte> into, std::uint64_t seed, std::uint64_t position) noexcept;
/// Returns 1 + the index of the first byte that differs, or 0 if none does.
std::uint64_t first_difference(std::span<const std::byte> actual, std::uint64_t seed,
                               std::uint64_t position);

}  // namespace linkspan::tool
