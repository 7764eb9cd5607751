#include "transport/batch.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace linkspan::transport {
namespace batch_test {

using Indices = std::vector<std::uint32_t>;

constexpr std::uint64_t kMax = ~std::uint64_t{0};
constexpr Capabilities kAny{
    .max_batch_bytes = kMax, .max_batch_blocks = kMax, .max_batch_pages = kMax};

Status check(const Indices& ours, const Indices& theirs, std::uint64_t page_bytes,
             std::uint64_t here, std::uint64_t there, std::uint64_t base = 0) {
  return check_pages(
      {.page_bytes = page_bytes, .local_base = base, .local_index = ours, .remote_index = theirs},
      here, there, kAny);
}

TEST(Batch, OnePageOutsideIsFoundWhereverItStands) {
  for (std::size_t count : {1u, 7u, 8u, 9u, 31u, 64u}) {
    for (std::size_t at = 0; at < count; ++at) {
      Indices ours(count, 3), theirs(count, 4);
      EXPECT_TRUE(check(ours, theirs, 16, 64, 80).ok());
      ours[at] = 4;
      const Status wrong = check(ours, theirs, 16, 64, 80);
      EXPECT_EQ(wrong.code(), Code::invalid_argument);
      EXPECT_NE(wrong.what().find("page " + std::to_string(at) + " (local index 4, remote index 4"),
                std::string::npos)
          << wrong.what();
      ours[at] = 3;
      theirs[at] = 5;
      EXPECT_EQ(check(ours, theirs, 16, 64, 80).code(), Code::invalid_argument);
    }
  }
}

TEST(Batch, IndicesOfAnySizeAreRight) {
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 60;
  for (std::uint32_t index : {0u, 1u, 0x7FFF'FFFEu, 0x7FFF'FFFFu, 0x8000'0000u, 0xFFFF'FFFFu}) {
    const Indices many(9, index), none(9, 0);
    for (std::uint64_t bytes : {std::uint64_t{index}, std::uint64_t{index} + 1})
      EXPECT_EQ(check(many, none, 1, bytes, 1).ok(), bytes > index) << index;
    EXPECT_TRUE(check(many, none, 4096, kHuge, kHuge).ok());
  }
}

TEST(Batch, NothingOverflows) {
  const Indices last(3, ~std::uint32_t{0}), first(3, 0);
  EXPECT_FALSE(check(last, first, kMax, kMax, kMax).ok());
  EXPECT_FALSE(check(first, first, 8, 16, 16, kMax).ok());
  EXPECT_FALSE(check(first, first, 8, 16, 16, 9).ok());
  EXPECT_TRUE(check(first, first, 8, 16, 16, 8).ok());
  EXPECT_FALSE(check(first, first, kMax, kMax, kMax).ok()) << "three of them are too many bytes";
  EXPECT_TRUE(check({0}, {0}, kMax, kMax, kMax).ok());
}

TEST(Batch, PagesWithoutBytesLeaveNothing) {
  EXPECT_TRUE(check({5, 6}, {7, 8}, 0, 1, 1).ok());
  EXPECT_FALSE(check({0}, {0}, 0, 16, 16, 17).ok());
  EXPECT_TRUE(check({}, {}, 16, 0, 0).ok());
  EXPECT_TRUE(
      blocks_of({.page_bytes = 0, .local_index = Indices{1}, .remote_index = Indices{1}}).empty());
}

TEST(Batch, PagesAndBlocksAreTheSame) {
  const Indices ours = {2, 0}, theirs = {1, 3};
  const auto blocks = blocks_of({.page_bytes = 10,
                                 .local_base = 1,
                                 .remote_base = 2,
                                 .local_index = ours,
                                 .remote_index = theirs});
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0].local_offset, 21u);
  EXPECT_EQ(blocks[0].remote_offset, 12u);
  EXPECT_EQ(blocks[1].local_offset, 1u);
  EXPECT_EQ(blocks[1].remote_offset, 32u);
  EXPECT_EQ(blocks[1].bytes, 10u);
}

TEST(Batch, BlocksThatContinueEachOtherOnBothSidesAreOne) {
  const Block list[] = {{0, 100, 10}, {10, 110, 5}, {15, 115, 0}, {15, 115, 1},  // one
                        {16, 117, 4}, {20, 121, 4},                              // there a gap
                        {25, 125, 3},                                            // here a gap
                        {22, 122, 3},                                            // backwards
                        {25, 124, 3}};
  const auto blocks = checked_blocks(list, 1000, 1000, kAny);
  ASSERT_TRUE(blocks.ok());
  const Block expected[] = {{0, 100, 16}, {16, 117, 8}, {25, 125, 3}, {22, 122, 3}, {25, 124, 3}};
  ASSERT_EQ(blocks->size(), std::size(expected));
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    EXPECT_EQ((*blocks)[i].local_offset, expected[i].local_offset) << i;
    EXPECT_EQ((*blocks)[i].remote_offset, expected[i].remote_offset) << i;
    EXPECT_EQ((*blocks)[i].bytes, expected[i].bytes) << i;
  }
}

using Level = Strides::Level;

TEST(Batch, StridesEndWithTheirRegionsToTheByte) {
  const Strides s{.bytes = 5,
                  .local_base = 7,
                  .remote_base = 11,
                  .levels = {Level{3, 10, 20}, Level{2, 100, 1000}, Level{4, 0, 7}}};
  constexpr std::uint64_t kHere = 7 + 20 + 100 + 5, kThere = 11 + 40 + 1000 + 21 + 5;
  EXPECT_TRUE(check_strides(s, kHere, kThere, kAny).ok());
  const Status ours = check_strides(s, kHere - 1, kThere, kAny);
  EXPECT_EQ(ours.code(), Code::invalid_argument);
  EXPECT_NE(ours.what().find("local region of 131 bytes"), std::string::npos) << ours.what();
  EXPECT_NE(ours.what().find("2 x (100, 1000)"), std::string::npos) << ours.what();
  EXPECT_EQ(check_strides(s, kHere, kThere - 1, kAny).code(), Code::invalid_argument);
  const Capabilities less{.max_batch_bytes = 5 * 24 - 1};
  EXPECT_EQ(check_strides(s, kHere, kThere, less).code(), Code::invalid_argument);
}

TEST(Batch, NothingOfStridesOverflows) {
  constexpr std::uint64_t kHalf = kMax / 2 + 1;
  for (const Strides& s :
       {Strides{.bytes = 1, .levels = {Level{kMax, 2, 0}}},   // the way of one level
        Strides{.bytes = 1, .levels = {Level{3, kHalf, 0}}},  // is 2^64, hence 0
        Strides{.bytes = 1, .levels = {Level{2, kHalf, 0}, Level{2, kHalf, 0}}},  // of two levels
        Strides{.bytes = 1, .levels = {Level{2, 0, kHalf}, Level{2, 0, kHalf}}},
        Strides{.bytes = kMax, .local_base = 1},  // the last block's end
        Strides{.bytes = 8, .levels = {Level{kHalf, 0, 0}, Level{2, 0, 0}}},  // the count is 2^64
        Strides{.bytes = 2, .levels = {Level{kHalf, 0, 0}}}})                 // the bytes are
    EXPECT_EQ(check_strides(s, kMax, kMax, kAny).code(), Code::invalid_argument);
  EXPECT_TRUE(check_strides({.bytes = 1, .levels = {Level{kMax, 1, 0}}}, kMax, 1, kAny).ok());
  EXPECT_FALSE(check_strides({.bytes = 1, .levels = {Level{kMax, 1, 0}}}, kMax - 1, 1, kAny).ok());
}

TEST(Batch, StridesWithoutBlocksLeaveNothingAndWithoutBytesTheirBases) {
  const Strides none{.bytes = 8,
                     .local_base = kMax,
                     .levels = {Level{kMax, kMax, kMax}, Level{0, 1, 1}, Level{kMax, 1, 1}}};
  EXPECT_TRUE(check_strides(none, 1, 1, kAny).ok());
  EXPECT_EQ(summary_of(none).blocks, 0u);
  EXPECT_EQ(summary_of(none).bytes, 0u);
  const Strides empty{.bytes = 0, .levels = {Level{3, 8, 8}}};
  EXPECT_TRUE(check_strides(empty, 16, 16, kAny).ok());
  EXPECT_FALSE(check_strides(empty, 15, 16, kAny).ok());
  EXPECT_EQ(summary_of(empty).blocks, 0u);
}

}  // namespace batch_test
}  // namespace linkspan::transport
