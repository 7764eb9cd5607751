// base/crc32c.hpp - CRC32C, what shows that bytes were changed by chance.
//
// RFC 3720, section 12.1: the polynomial of Castagnoli, 0x1EDC6F41. Not against who changes them on
// purpose: base/frame_authenticator.hpp. By SSE4.2 where the CPU has it, in three streams, for one
// instruction has to wait for the one before it three cycles; else by a table, byte by byte.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace linkspan::base {

/// Of `bytes` behind others whose sum is `before`.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

/// The same, on any CPU.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

}  // namespace linkspan::base
