// Grouping of NIXL's descriptors into pairs of memories and shapes.
#include "integrations/nixl/src/transfer_plan.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace linkspan::nixl {
namespace nixl_transfer_plan_test {

struct Lists {
  std::vector<abi::DescriptorWithHandle> local, remote;

  void add(MemoryHandle& here, std::uint64_t from, MemoryHandle& there, std::uint64_t to,
           std::size_t bytes) {
    local.push_back({{here.address + from, bytes, 0}, &here});
    remote.push_back({{there.address + to, bytes, 0}, &there});
  }
  Result<TransferPlan> plan() const { return TransferPlan::make(local, remote); }
};

struct Memories {
  MemoryHandle k{true, 0x10000, 1 << 20}, v{true, 0x200000, 1 << 20};
  MemoryHandle far_k{false, 0x700010, 1 << 20}, far_v{false, 0x900000, 1 << 20};
};

TEST(NixlTransferPlan, IsPages_WhenBlocksOfOneSizeLieOnAGrid) {
  Memories m;
  Lists lists;
  for (std::uint64_t page : {7u, 3u, 100u})
    lists.add(m.k, page * 4096 + 64, m.far_k, page * 8192, 4096);
  const auto plan = lists.plan().value();
  ASSERT_EQ(plan.pairs().size(), 1u);
  const auto& pair = plan.pairs().front();
  const auto& pages = std::get<Pages>(pair.shape);
  EXPECT_EQ(pages.page_bytes, 4096u);
  ASSERT_EQ(pages.local_index.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(pages.local_base + pages.local_index[i] * 4096, lists.local[i].address - m.k.address);
    EXPECT_EQ(pages.remote_base + pages.remote_index[i] * 4096,
              lists.remote[i].address - m.far_k.address);
  }
  EXPECT_EQ(plan.blocks(), 3u);
  EXPECT_EQ(plan.bytes(), 3u * 4096);
}

TEST(NixlTransferPlan, IsPages_WhenTheirSizeIsNoPowerOfTwo) {
  Memories m;
  Lists lists;
  for (std::uint64_t page : {5u, 0u, 9u})
    lists.add(m.k, page * 4608, m.far_k, 9 * 4608 - page * 4608, 4608);
  const auto plan = lists.plan().value();
  const auto& pages = std::get<Pages>(plan.pairs().front().shape);
  EXPECT_EQ(std::vector(pages.local_index.begin(), pages.local_index.end()),
            (std::vector<std::uint32_t>{5, 0, 9}));
  EXPECT_EQ(std::vector(pages.remote_index.begin(), pages.remote_index.end()),
            (std::vector<std::uint32_t>{4, 9, 0}));
}

TEST(NixlTransferPlan, IsBlocks_WhenSizesDiffer) {
  Memories m;
  Lists lists;
  lists.add(m.k, 0, m.far_k, 4096, 4096);
  lists.add(m.k, 4096, m.far_k, 0, 100);
  const auto plan = lists.plan().value();
  const auto& blocks = std::get<std::span<const Block>>(plan.pairs().front().shape);
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[1].local_offset, 4096u);
  EXPECT_EQ(blocks[1].remote_offset, 0u);
  EXPECT_EQ(blocks[1].bytes, 100u);
}

TEST(NixlTransferPlan, IsBlocks_WhenABlockIsOffTheGrid) {
  Memories m;
  for (int side = 0; side < 2; ++side) {
    Lists lists;
    lists.add(m.k, 64, m.far_k, 64, 4096);
    lists.add(m.k, side == 0 ? 8192 : 4160, m.far_k, side == 0 ? 4160 : 8192, 4096);
    const auto plan = lists.plan().value();
    EXPECT_TRUE(std::holds_alternative<std::span<const Block>>(plan.pairs().front().shape));
  }
}

TEST(NixlTransferPlan, HasOnePairForEachTwoMemories_WhenTheyAlternate) {
  Memories m;
  Lists lists;
  for (std::uint64_t page = 0; page < 10; ++page) {
    lists.add(m.k, page * 512, m.far_k, page * 512, 512);
    lists.add(m.v, page * 512, m.far_v, page * 512, page == 5 ? 511 : 512);
  }
  const auto plan = lists.plan().value();
  ASSERT_EQ(plan.pairs().size(), 2u);
  EXPECT_EQ(plan.pairs()[0].local, &m.k);
  EXPECT_EQ(plan.pairs()[1].remote, &m.far_v);
  EXPECT_EQ(std::get<Pages>(plan.pairs()[0].shape).local_index[9], 9u);
  const auto& blocks = std::get<std::span<const Block>>(plan.pairs()[1].shape);
  ASSERT_EQ(blocks.size(), 10u);
  EXPECT_EQ(blocks[5].bytes, 511u);
  EXPECT_EQ(blocks[9].local_offset, 9u * 512);
}

TEST(NixlTransferPlan, NamesTheDescriptor_WhenItLeavesItsMemory) {
  Memories m;
  for (const std::uint64_t past :
       {std::uint64_t{1}, std::uint64_t{1} << 20, ~std::uint64_t{0} >> 1}) {
    Lists lists;
    lists.add(m.k, 0, m.far_k, 0, 4096);
    lists.add(m.k, (1 << 20) - 4096 + past, m.far_k, 0, 4096);
    const auto plan = lists.plan();
    ASSERT_EQ(plan.status().code(), Code::invalid_argument);
    EXPECT_NE(plan.status().what().find("descriptor 1 of the local list"), std::string::npos);
    EXPECT_NE(plan.status().what().find("leaves its memory of 1048576 bytes"), std::string::npos);
  }
  Lists below;
  below.add(m.k, 0, m.far_k, 0, 4096);
  below.remote[0].address -= 1;
  EXPECT_NE(below.plan().status().what().find("of the remote list"), std::string::npos);
  Lists huge;
  huge.add(m.k, 1, m.far_k, 1, ~std::size_t{0});
  EXPECT_EQ(huge.plan().status().code(), Code::invalid_argument);
}

TEST(NixlTransferPlan, IsRefused_WhenTheListsDoNotMatch) {
  Memories m;
  Lists lists;
  EXPECT_NE(lists.plan().status().what().find("0 local and 0 remote"), std::string::npos);
  lists.add(m.k, 0, m.far_k, 0, 4096);
  lists.remote[0].bytes = 4095;
  EXPECT_NE(lists.plan().status().what().find("4096 bytes here and 4095 there"), std::string::npos);
  lists.remote[0].handle = nullptr;
  EXPECT_NE(lists.plan().status().what().find("descriptor 0 has no registered memory"),
            std::string::npos);
  Lists empty;
  empty.add(m.k, 0, m.far_k, 0, 0);
  EXPECT_NE(empty.plan().status().what().find("has 0 bytes: leave it out"), std::string::npos);
}

}  // namespace nixl_transfer_plan_test
}  // namespace linkspan::nixl
