// Tests the parts of a frame that are still to be sent or filled.
#include "transport/tcp/iovecs.hpp"

#include <gtest/gtest.h>

#include <array>

namespace linkspan::transport::tcp {
namespace tcp_iovecs_test {

struct Parts {
  std::array<std::byte, 64> memory{};
  std::array<std::byte, 8> zeros{};
  Iovecs iovecs;
};

TEST(Iovecs, JoinsRangesThatFollowEachOther) {
  Parts parts;
  parts.iovecs.append(&parts.memory[0], 8);
  parts.iovecs.append(&parts.memory[8], 8);
  parts.iovecs.append(&parts.memory[32], 8);
  ASSERT_EQ(parts.iovecs.size(), 2u);
  EXPECT_EQ(parts.iovecs.left()[0].iov_len, 16u);
  EXPECT_EQ(parts.iovecs.bytes_left(), 24u);
}

TEST(Iovecs, HasWhatIsLeft_WhenSomeHasMoved) {
  Parts parts;
  parts.iovecs.push_back(&parts.memory[0], 8);
  parts.iovecs.push_back(&parts.memory[8], 8);
  EXPECT_FALSE(parts.iovecs.advance(11));
  ASSERT_EQ(parts.iovecs.left().size(), 1u);
  EXPECT_EQ(parts.iovecs.left()[0].iov_base, &parts.memory[11]);
  EXPECT_EQ(parts.iovecs.bytes_left(), 5u);
  EXPECT_TRUE(parts.iovecs.advance(5));
  EXPECT_EQ(parts.iovecs.bytes_left(), 0u);
  EXPECT_FALSE(parts.iovecs.empty());
  parts.iovecs.clear();
  EXPECT_TRUE(parts.iovecs.empty());
}

TEST(Iovecs, RepeatsOneBuffer) {
  Parts parts;
  parts.iovecs.repeat(parts.zeros, 20);
  ASSERT_EQ(parts.iovecs.size(), 3u);
  for (const iovec& part : parts.iovecs.left()) EXPECT_EQ(part.iov_base, parts.zeros.data());
  EXPECT_EQ(parts.iovecs.left()[2].iov_len, 4u);
  EXPECT_EQ(parts.iovecs.bytes_left(), 20u);
}

/// As many bytes follow as before; the first part and the last one stay.
TEST(Iovecs, ReplacesWhatIsLeftOfAPart) {
  Parts parts;
  for (const std::size_t at : {0u, 8u, 16u, 24u}) parts.iovecs.push_back(&parts.memory[at], 8);
  EXPECT_FALSE(parts.iovecs.advance(11));
  EXPECT_EQ(parts.iovecs.replace(1, 3, parts.zeros), 3u);
  EXPECT_EQ(parts.iovecs.bytes_left(), 21u);
  ASSERT_EQ(parts.iovecs.left().size(), 3u);
  EXPECT_EQ(parts.iovecs.left()[0].iov_base, parts.zeros.data());
  EXPECT_EQ(parts.iovecs.left()[1].iov_len, 5u);
  EXPECT_EQ(parts.iovecs.left()[2].iov_base, &parts.memory[24]);
  EXPECT_FALSE(parts.iovecs.advance(20));
  EXPECT_EQ(parts.iovecs.replace(1, 3, parts.zeros), 3u) << "of these nothing is left";
  EXPECT_EQ(parts.iovecs.left()[0].iov_base, &parts.memory[31]);
}

}  // namespace tcp_iovecs_test
}  // namespace linkspan::transport::tcp
