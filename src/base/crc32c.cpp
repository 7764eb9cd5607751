#include "base/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace linkspan::base {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // bits reversed
using Table = std::array<std::uint32_t, 256>;

constexpr Table kTable = [] {
  Table table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t sum = i;
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? kPolynomial : 0);
    table[i] = sum;
  }
  return table;
}();

#if defined(__x86_64__)

constexpr std::size_t kStream = 1024;  // bytes of each of three parts that are summed side by side

/// Maps each byte of the CRC register to its contribution after kStream zero bytes. The CRC is
/// linear in the register's bits, so the four contributions are combined by XOR.
constexpr std::array<Table, 4> kBehind = [] {
  std::array<std::uint32_t, 32> bits{};
  for (std::size_t i = 0; i < bits.size(); ++i) {
    std::uint32_t sum = std::uint32_t{1} << i;
    for (std::size_t n = 0; n < kStream; ++n) sum = kTable[sum & 0xFF] ^ (sum >> 8);
    bits[i] = sum;
  }
  std::array<Table, 4> out{};
  for (std::size_t byte = 0; byte < out.size(); ++byte)
    for (std::size_t value = 0; value < kTable.size(); ++value)
      for (std::size_t bit = 0; bit < 8; ++bit)
        if ((value >> bit & 1) != 0) out[byte][value] ^= bits[byte * 8 + bit];
  return out;
}();

std::uint32_t behind(std::uint32_t sum) noexcept {
  return kBehind[0][sum & 0xFF] ^ kBehind[1][sum >> 8 & 0xFF] ^ kBehind[2][sum >> 16 & 0xFF] ^
         kBehind[3][sum >> 24];
}

std::uint64_t word(const std::byte* at) noexcept {
  std::uint64_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

[[gnu::target("sse4.2")]] std::uint32_t by_instruction(const std::byte* at, std::size_t left,
                                                       std::uint32_t before) noexcept {
  std::uint64_t sum = ~before;
  for (; left >= 3 * kStream; at += 3 * kStream, left -= 3 * kStream) {
    std::uint64_t second = 0, third = 0;
    for (std::size_t i = 0; i < kStream; i += 8) {
      sum = _mm_crc32_u64(sum, word(at + i));
      second = _mm_crc32_u64(second, word(at + kStream + i));
      third = _mm_crc32_u64(third, word(at + 2 * kStream + i));
    }
    second ^= behind(static_cast<std::uint32_t>(sum));
    sum = third ^ behind(static_cast<std::uint32_t>(second));
  }
  for (; left >= 8; at += 8, left -= 8) sum = _mm_crc32_u64(sum, word(at));
  for (; left != 0; ++at, --left)
    sum = _mm_crc32_u8(static_cast<std::uint32_t>(sum), std::to_integer<unsigned char>(*at));
  return ~static_cast<std::uint32_t>(sum);
}

#endif

}  // namespace

std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before) noexcept {
  std::uint32_t sum = ~before;
  for (const std::byte b : bytes)
    sum = kTable[(sum ^ std::to_integer<std::uint32_t>(b)) & 0xFF] ^ (sum >> 8);
  return ~sum;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) noexcept {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return by_instruction(bytes.data(), bytes.size(), before);
#endif
  return crc32c_by_table(bytes, before);
}

}  // namespace linkspan::base
