// tools/linkspan/pair/data.hpp - data in which every byte that landed wrongly shows: a seed and a
// position make a byte, without a short period. Seeds are small.
//
// Threads: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace linkspan::tool {

void put_data(std::span<std::byte> into, std::uint64_t seed, std::uint64_t position) noexcept;
/// Zero or the index of the first byte that differs, plus one.
std::uint64_t first_difference(std::span<const std::byte> actual, std::uint64_t seed,
                               std::uint64_t position);

}  // namespace linkspan::tool
