#include "base/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define LINKSPAN_CRC32C_TARGET "sse4.2"
#elif defined(__aarch64__) && !defined(__clang__)  // clang 14 declares it only with -march=...+crc
#include <arm_acle.h>
#include <sys/auxv.h>
#define LINKSPAN_CRC32C_TARGET "+crc"
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

#if defined(LINKSPAN_CRC32C_TARGET)

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

#if defined(__x86_64__)

using Sum = std::uint64_t;  // as the instruction takes and gives it, with its upper half zero

[[gnu::target(LINKSPAN_CRC32C_TARGET)]] inline Sum add(Sum sum, std::uint64_t word) noexcept {
  return _mm_crc32_u64(sum, word);
}
[[gnu::target(LINKSPAN_CRC32C_TARGET)]] inline Sum add(Sum sum, std::byte value) noexcept {
  return _mm_crc32_u8(static_cast<std::uint32_t>(sum), std::to_integer<std::uint8_t>(value));
}
bool has_instruction() noexcept { return __builtin_cpu_supports("sse4.2") != 0; }

#else

using Sum = std::uint32_t;

[[gnu::target(LINKSPAN_CRC32C_TARGET)]] inline Sum add(Sum sum, std::uint64_t word) noexcept {
  return __crc32cd(sum, word);
}
[[gnu::target(LINKSPAN_CRC32C_TARGET)]] inline Sum add(Sum sum, std::byte value) noexcept {
  return __crc32cb(sum, std::to_integer<std::uint8_t>(value));
}
bool has_instruction() noexcept { return (::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }

#endif

[[gnu::target(LINKSPAN_CRC32C_TARGET)]] std::uint32_t by_instruction(
    const std::byte* at, std::size_t left, std::uint32_t before) noexcept {
  Sum sum = ~before;
  for (; left >= 3 * kStream; at += 3 * kStream, left -= 3 * kStream) {
    Sum second = 0, third = 0;
    for (std::size_t i = 0; i < kStream; i += 8) {
      sum = add(sum, word(at + i));
      second = add(second, word(at + kStream + i));
      third = add(third, word(at + 2 * kStream + i));
    }
    second ^= behind(static_cast<std::uint32_t>(sum));
    sum = third ^ behind(static_cast<std::uint32_t>(second));
  }
  for (; left >= 8; at += 8, left -= 8) sum = add(sum, word(at));
  for (; left != 0; ++at, --left) sum = add(sum, *at);
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
#if defined(LINKSPAN_CRC32C_TARGET)
  static const bool is_fast = has_instruction();
  if (is_fast) return by_instruction(bytes.data(), bytes.size(), before);
#endif
  return crc32c_by_table(bytes, before);
}

}  // namespace linkspan::base
