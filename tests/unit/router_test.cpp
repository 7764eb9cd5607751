#include "engine/router.hpp"

#include <gtest/gtest.h>

namespace linkspan::engine {
namespace {

constexpr transport::Capabilities kSmall{.max_batch_bytes = 100, .max_batch_blocks = 3};

TEST(Router, NoBlocksAreOneEmptyBatch) {
  const Plan plan = make_plan({}, kSmall);
  ASSERT_EQ(plan.ends.size(), 1u);
  EXPECT_TRUE(plan.batch(0).empty());
}

TEST(Router, CutsByBytesAndByBlocksAndKeepsEveryByte) {
  const Block blocks[] = {{0, 1000, 250}, {300, 2000, 1}, {400, 3000, 1},
                          {500, 4000, 1}, {600, 5000, 0}, {700, 6000, 99}};
  const Plan plan = make_plan(blocks, kSmall);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < plan.ends.size(); ++i) {
    std::uint64_t bytes = 0;
    EXPECT_LE(plan.batch(i).size(), 3u);
    for (const Block& b : plan.batch(i)) bytes += b.bytes;
    EXPECT_LE(bytes, 100u);
    sum += bytes;
  }
  EXPECT_EQ(sum, 250u + 1 + 1 + 1 + 99);
  EXPECT_EQ(plan.blocks[0].bytes, 100u);
  EXPECT_EQ(plan.blocks[1].local_offset, 100u);
  EXPECT_EQ(plan.blocks[1].remote_offset, 1100u);
}

}  // namespace
}  // namespace linkspan::engine
