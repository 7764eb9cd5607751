#include "base/crc32c.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace linkspan::base {
namespace crc32c_test {

using Bytes = std::vector<std::byte>;

Bytes counting(std::size_t count, std::size_t step = 1) {
  Bytes out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(i * step);
  return out;
}

/// RFC 3720, appendix B.4, and the check value of the usual catalogue.
TEST(Crc32c, IsThatOfTheStandard) {
  Bytes falling = counting(32);
  std::ranges::reverse(falling);
  Bytes read(48);  // a command of iSCSI
  const auto set = [&](std::size_t at, std::uint8_t value) { read[at] = std::byte{value}; };
  set(0, 0x01), set(1, 0xC0), set(16, 0x14), set(22, 0x04), set(27, 0x14), set(31, 0x18);
  set(32, 0x28), set(40, 0x02);
  Bytes digits(9);
  std::memcpy(digits.data(), "123456789", 9);
  const std::pair<Bytes, std::uint32_t> known[] = {
      {{}, 0},
      {Bytes(32), 0x8A9136AA},
      {Bytes(32, std::byte{0xFF}), 0x62A8AB43},
      {counting(32), 0x46DD794E},
      {falling, 0x113FDB5C},
      {read, 0xD9963A56},
      {digits, 0xE3069283},
  };
  for (const auto& [bytes, sum] : known) {
    EXPECT_EQ(crc32c(bytes), sum);
    EXPECT_EQ(crc32c_by_table(bytes), sum);
  }
}

TEST(Crc32c, IsTheSameByBothWays) {
  const Bytes bytes = counting(10'000, 1757);
  for (const std::size_t count :
       {1u, 7u, 8u, 1023u, 3071u, 3072u, 3073u, 3080u, 6143u, 6144u, 9217u, 9991u})
    for (const std::size_t from : {0u, 1u, 5u, 9u}) {
      const auto part = std::span(bytes).subspan(from, count);
      EXPECT_EQ(crc32c(part), crc32c_by_table(part)) << count << " from " << from;
    }
}

TEST(Crc32c, GoesOnWhereItStopped) {
  const Bytes bytes = counting(7'000, 13);
  for (const std::size_t cut : {0u, 1u, 8u, 100u, 3072u, 6999u, 7000u}) {
    const auto first = std::span(bytes).first(cut), rest = std::span(bytes).subspan(cut);
    EXPECT_EQ(crc32c(rest, crc32c(first)), crc32c(bytes)) << cut;
    EXPECT_EQ(crc32c_by_table(rest, crc32c_by_table(first)), crc32c(bytes)) << cut;
  }
}

TEST(Crc32c, SeesEachBit) {
  Bytes bytes = counting(3'100, 3);
  const std::uint32_t sum = crc32c(bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{1} << (i % 8);
    EXPECT_NE(crc32c(bytes), sum) << i;
    bytes[i] ^= std::byte{1} << (i % 8);
  }
}

}  // namespace crc32c_test
}  // namespace linkspan::base
