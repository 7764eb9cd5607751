#include "engine/router.hpp"

#include <gtest/gtest.h>

namespace linkspan::engine {
namespace {

constexpr transport::Capabilities kSmall{
    .max_batch_bytes = 100, .max_batch_blocks = 3, .max_batch_pages = 4};

std::span<const Block> blocks_of(const Plan& plan, std::size_t i) {
  return std::get<std::span<const Block>>(plan.batch(i));
}

TEST(Router, NoBlocksAreOneEmptyBatch) {
  const Plan plan = make_plan(std::span<const Block>(), kSmall);
  ASSERT_EQ(plan.ends.size(), 1u);
  EXPECT_TRUE(blocks_of(plan, 0).empty());
}

TEST(Router, CutsByBytesAndByBlocksAndKeepsEveryByte) {
  const Block blocks[] = {{0, 1000, 250}, {300, 2000, 1}, {400, 3000, 1},
                          {500, 4000, 1}, {600, 5000, 0}, {700, 6000, 99}};
  const Plan plan = make_plan(blocks, kSmall);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < plan.ends.size(); ++i) {
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
  ASSERT_EQ(plan.ends, (std::vector<std::size_t>{3, 6})) << "three of 30 bytes are in a batch";
  const auto last = std::get<Pages>(plan.batch(1));
  EXPECT_EQ(last.page_bytes, 30u);
  EXPECT_EQ(last.local_base, 1u);
  EXPECT_EQ(last.remote_base, 2u);
  EXPECT_EQ(std::vector(last.local_index.begin(), last.local_index.end()),
            (std::vector<std::uint32_t>{6, 5, 4}));
  EXPECT_EQ(std::vector(last.remote_index.begin(), last.remote_index.end()),
            (std::vector<std::uint32_t>{3, 4, 5}));
}

TEST(Router, PagesAreAtMostSoManyInABatch) {
  const std::vector<std::uint32_t> index = {0, 1, 2, 3, 4};
  const Plan plan =
      make_plan(Pages{.page_bytes = 1, .local_index = index, .remote_index = index}, kSmall);
  EXPECT_EQ(plan.ends, (std::vector<std::size_t>{4, 5}));
}

TEST(Router, PagesThatAreLargerThanABatchAreCut) {
  const std::vector<std::uint32_t> index = {0, 1};
  const Plan plan =
      make_plan(Pages{.page_bytes = 150, .local_index = index, .remote_index = index}, kSmall);
  ASSERT_EQ(plan.ends.size(), 3u);
  EXPECT_EQ(blocks_of(plan, 1).back().local_offset, 150u);
}

TEST(Router, PagesWithoutBytesAreOneEmptyBatch) {
  const std::vector<std::uint32_t> index = {0, 1};
  const Plan plan =
      make_plan(Pages{.page_bytes = 0, .local_index = index, .remote_index = index}, kSmall);
  ASSERT_EQ(plan.ends.size(), 1u);
  EXPECT_TRUE(blocks_of(plan, 0).empty());
}

}  // namespace
}  // namespace linkspan::engine
