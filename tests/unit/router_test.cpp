#include "engine/transfers/router.hpp"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace linkspan::engine {
namespace router_test {

constexpr transport::Capabilities kSmall{
    .max_batch_bytes = 100, .max_batch_blocks = 3, .max_batch_pages = 4};

std::vector<Block> scratch;

std::span<const Block> blocks_of(const Plan& plan, std::size_t i) {
  return std::get<std::span<const Block>>(plan.batch(i, scratch));
}

TEST(Router, NoBlocksAreOneEmptyBatch) {
  const Plan plan = make_plan(std::vector<Block>(), kSmall);
  ASSERT_EQ(plan.batches, 1u);
  EXPECT_TRUE(blocks_of(plan, 0).empty());
}

TEST(Router, CutsByBytesAndByBlocksAndKeepsEveryByte) {
  const Block blocks[] = {{0, 1000, 250}, {300, 2000, 1}, {400, 3000, 1},
                          {500, 4000, 1}, {600, 5000, 0}, {700, 6000, 99}};
  const Plan plan = make_plan({std::begin(blocks), std::end(blocks)}, kSmall);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < plan.batches; ++i) {
    std::uint64_t bytes = 0;
    EXPECT_LE(blocks_of(plan, i).size(), 3u);
    for (const Block& b : blocks_of(plan, i)) bytes += b.bytes;
    EXPECT_LE(bytes, 100u);
    sum += bytes;
  }
  EXPECT_EQ(sum, 250u + 1 + 1 + 1 + 99);
  EXPECT_EQ(plan.blocks[0].bytes, 100u);
  EXPECT_EQ(plan.blocks[1].local_offset, 100u);
  EXPECT_EQ(plan.blocks[1].remote_offset, 1100u);
}

TEST(Router, PagesStayPagesAndOutliveTheUsersListsOnceTheyAreKept) {
  std::vector<std::uint32_t> ours = {9, 8, 7, 6, 5, 4}, theirs = {0, 1, 2, 3, 4, 5};
  Plan plan = make_plan(Pages{.page_bytes = 30,
                              .local_base = 1,
                              .remote_base = 2,
                              .local_index = ours,
                              .remote_index = theirs},
                        kSmall);
  plan.keep();
  ours.assign(6, 0);
  theirs.assign(6, 0);
  ASSERT_EQ(plan.batches, 2u);
  ASSERT_EQ(plan.first(1), 3u) << "three of 30 bytes are in a batch";
  const auto last = std::get<Pages>(plan.batch(1, scratch));
  EXPECT_EQ(last.page_bytes, 30u);
  EXPECT_EQ(last.local_base, 1u);
  EXPECT_EQ(last.remote_base, 2u);
  EXPECT_EQ(std::vector(last.local_index.begin(), last.local_index.end()),
            (std::vector<std::uint32_t>{6, 5, 4}));
  EXPECT_EQ(std::vector(last.remote_index.begin(), last.remote_index.end()),
            (std::vector<std::uint32_t>{3, 4, 5}));
}

TEST(Router, ASubsetOfPagesIsAPlanThatKeepsItsLists) {
  const std::vector<std::uint32_t> ours = {9, 8, 7, 6, 5}, theirs = {0, 1, 2, 3, 4};
  const Pages whole{.page_bytes = 10,
                    .local_base = 1,
                    .remote_base = 2,
                    .local_index = ours,
                    .remote_index = theirs};
  std::vector<std::uint32_t> positions = {4, 0, 0, 1, 2};
  const auto plan = make_plan(whole, positions, kSmall);
  ASSERT_TRUE(plan.ok());
  positions.assign(5, 3);
  EXPECT_TRUE(plan->checked);
  ASSERT_EQ(plan->batches, 2u);
  const auto some = std::get<Pages>(plan->batch(0, scratch));
  EXPECT_EQ(std::vector(some.local_index.begin(), some.local_index.end()),
            (std::vector<std::uint32_t>{5, 9, 9}));
  EXPECT_EQ(std::vector(some.remote_index.begin(), some.remote_index.end()),
            (std::vector<std::uint32_t>{4, 0, 0}));
  EXPECT_EQ(some.local_base, 1u);

  const auto wrong = make_plan(whole, std::vector<std::uint32_t>{0, 5}, kSmall);
  EXPECT_EQ(wrong.status().code(), Code::invalid_argument);
  EXPECT_NE(wrong.status().what().find("position 5 of 5"), std::string::npos);
  const auto none = make_plan(whole, std::span<const std::uint32_t>(), kSmall);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->batches, 1u);

  Pages large = whole;  // larger than a batch, hence blocks
  large.page_bytes = 150;
  const auto cut = make_plan(large, std::vector<std::uint32_t>{2}, kSmall);
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(cut->batches, 2u);
  EXPECT_EQ(blocks_of(*cut, 0).front().local_offset, 1 + 7 * 150u);
  large.page_bytes = ~std::uint64_t{0} / 2;
  EXPECT_EQ(make_plan(large, std::vector<std::uint32_t>{0, 0, 0}, kSmall).status().code(),
            Code::invalid_argument);
}

TEST(Router, PagesAreAtMostSoManyInABatch) {
  const std::vector<std::uint32_t> index = {0, 1, 2, 3, 4};
  const Plan plan =
      make_plan(Pages{.page_bytes = 1, .local_index = index, .remote_index = index}, kSmall);
  EXPECT_EQ(plan.batches, 2u);
  EXPECT_EQ(plan.first(1), 3u) << "four fit, and leave a batch of one";
}

TEST(Router, PagesThatAreLargerThanABatchAreCut) {
  const std::vector<std::uint32_t> index = {0, 1};
  const Plan plan =
      make_plan(Pages{.page_bytes = 150, .local_index = index, .remote_index = index}, kSmall);
  ASSERT_EQ(plan.batches, 3u);
  EXPECT_EQ(blocks_of(plan, 1).back().local_offset, 150u);
}

TEST(Router, PagesWithoutBytesAreOneEmptyBatch) {
  const std::vector<std::uint32_t> index = {0, 1};
  const Plan plan =
      make_plan(Pages{.page_bytes = 0, .local_index = index, .remote_index = index}, kSmall);
  ASSERT_EQ(plan.batches, 1u);
  EXPECT_TRUE(blocks_of(plan, 0).empty());
}

/// Returns the destination of each byte of a plan, and checks the batches against kSmall.
std::map<std::uint64_t, std::uint64_t> bytes_of(const Plan& plan) {
  std::map<std::uint64_t, std::uint64_t> to;
  for (std::size_t i = 0; i < plan.batches; ++i) {
    std::uint64_t bytes = 0;
    const auto blocks = blocks_of(plan, i);
    EXPECT_LE(blocks.size(), kSmall.max_batch_blocks);
    for (const Block& b : blocks) {
      EXPECT_NE(b.bytes, 0u);
      bytes += b.bytes;
      for (std::uint64_t k = 0; k < b.bytes; ++k) to[b.remote_offset + k] = b.local_offset + k;
    }
    EXPECT_LE(bytes, kSmall.max_batch_bytes);
    EXPECT_NE(bytes, 0u);
  }
  return to;
}

TEST(Router, StridesBecomeTheirBlocksBatchByBatch) {
  using Level = Strides::Level;
  const Strides shapes[] = {
      {.bytes = 7, .local_base = 3, .remote_base = 5},
      {.bytes = 250, .local_base = 3, .remote_base = 5, .levels = {Level{3, 300, 260}}},
      {.bytes = 1, .levels = {Level{5, 2, 3}, Level{4, 100, 17}, Level{3, 1000, 90}}},
      {.bytes = 10, .levels = {Level{1, 9, 9}, Level{7, 10, 10}, Level{2, 80, 75}}},
      {.bytes = 10, .levels = {Level{3, 40, 40}, Level{4, 10, 10}, Level{2, 200, 300}}},
      {.bytes = 33, .levels = {Level{7, 0, 33}}},
      {.bytes = 101, .levels = {Level{2, 101, 101}, Level{1, 5, 5}, Level{2, 202, 202}}}};
  for (const Strides& s : shapes) {
    std::map<std::uint64_t, std::uint64_t> expected;
    for (std::uint64_t i = 0; i < s.levels[0].count; ++i)
      for (std::uint64_t j = 0; j < s.levels[1].count; ++j)
        for (std::uint64_t k = 0; k < s.levels[2].count; ++k)
          for (std::uint64_t byte = 0; byte < s.bytes; ++byte)
            expected[s.remote_base + i * s.levels[0].remote_step + j * s.levels[1].remote_step +
                     k * s.levels[2].remote_step + byte] =
                s.local_base + i * s.levels[0].local_step + j * s.levels[1].local_step +
                k * s.levels[2].local_step + byte;
    EXPECT_EQ(bytes_of(make_plan(s, kSmall)), expected) << s.bytes;
  }
}

TEST(Router, StridesOneBehindTheOtherAreOneBlock) {
  constexpr transport::Capabilities kLarge{
      .max_batch_bytes = 1u << 20, .max_batch_blocks = 8192, .max_batch_pages = 4};
  const Plan whole =
      make_plan(Strides{.bytes = 8,
                        .local_base = 1,
                        .remote_base = 2,
                        .levels = {Strides::Level{10, 400, 400}, Strides::Level{5, 80, 80},
                                   Strides::Level{10, 8, 8}}},
                kLarge);
  ASSERT_EQ(whole.batches, 1u);
  ASSERT_EQ(blocks_of(whole, 0).size(), 1u);
  EXPECT_EQ(scratch[0].local_offset, 1u);
  EXPECT_EQ(scratch[0].remote_offset, 2u);
  EXPECT_EQ(scratch[0].bytes, 4000u);
  const Plan one_side =
      make_plan(Strides{.bytes = 8, .levels = {Strides::Level{10, 8, 16}}}, kLarge);
  EXPECT_EQ(blocks_of(one_side, 0).size(), 10u);
}

TEST(Router, StridesWithoutBytesAreOneEmptyBatch) {
  for (const Strides& s : {Strides{.bytes = 0, .levels = {Strides::Level{9, 1, 1}}},
                           Strides{.bytes = 8, .levels = {Strides::Level{0, 1, 1}}}}) {
    const Plan plan = make_plan(s, kSmall);
    ASSERT_EQ(plan.batches, 1u);
    EXPECT_TRUE(blocks_of(plan, 0).empty());
  }
}

TEST(Router, StridesOfAnyNumberCostOneBatchAtATime) {
  constexpr std::uint64_t kMany = std::uint64_t{1} << 50;
  const Plan plan = make_plan(Strides{.bytes = 1, .levels = {Strides::Level{kMany, 0, 2}}}, kSmall);
  EXPECT_EQ(plan.batches, kMany / 3 + 1);
  EXPECT_EQ(blocks_of(plan, plan.batches - 1).back().remote_offset, 2 * (kMany - 1));
}

}  // namespace router_test
}  // namespace linkspan::engine
