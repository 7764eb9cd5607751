// base/crc32c.hpp - CRC32C, which detects accidental corruption of bytes.
//
// Polynomial 0x1EDC6F41 (Castagnoli; RFC 3720, section 12.1). It does not protect against
// deliberate changes: base/frame_authenticator.hpp does. Uses SSE4.2 or ARMv8's CRC32 where the CPU
// has it, on three interleaved parts, because each instruction waits for the previous one, on x86
// three cycles; else a table, byte by byte. Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace linkspan::base {

/// Returns the checksum of `bytes` after others whose checksum is `before`.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

/// Returns the same on any CPU.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

}  // namespace linkspan::base
