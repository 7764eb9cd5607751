#include "transport/nccl_net/tcpx/rx_descriptor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>

#include "tests/support/rx_control.hpp"

namespace linkspan::transport::nccl_net::tcpx {
namespace tcpx_rx_descriptor_test {

using Entries = std::vector<LoadMeta>;

constexpr std::uint64_t kPool = std::uint64_t{1} << 32;

void expect_entries(std::span<const LoadMeta> found, const Entries& want) {
  ASSERT_EQ(found.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(found[i].src_off, want[i].src_off) << i;
    EXPECT_EQ(found[i].len, want[i].len) << i;
    EXPECT_EQ(found[i].dst_off, want[i].dst_off) << i;
  }
}

void expect_block(const Entries& entries, const RxBounds& bounds, const Entries& want) {
  const auto block = DescriptorBlock::of(entries, bounds);
  ASSERT_TRUE(block.ok()) << block.status().to_string();
  EXPECT_EQ(block->bytes(), bounds.receive_bytes);
  EXPECT_EQ(block->fragments(), entries.size());
  expect_entries(block->entries(), want);
}

void expect_refused(const Entries& entries, const RxBounds& bounds,
                    std::initializer_list<const char*> parts) {
  const Status status = DescriptorBlock::of(entries, bounds).status();
  EXPECT_EQ(status.code(), Code::corrupt);
  for (const char* part : parts)
    EXPECT_NE(status.what().find(part), std::string::npos) << part << ": " << status.what();
}

TEST(TcpxRxDescriptor, NeighboursOnBothSidesAreMerged) {
  expect_block({{4096, 4096, 0}, {8192, 4096, 4096}, {12288, 10, 8192}}, {kPool, 8202},
               {{4096, 8202, 0}});
  expect_block({{4096, 4096, 0}, {12288, 4096, 4096}}, {kPool, 8192},
               {{4096, 4096, 0}, {12288, 4096, 4096}});  // in the receive only
  expect_block({{0, 0xffffffff, 0}, {0xffffffff, 1, 0xffffffff}}, {kPool, kPool},
               {{0, 0xffffffff, 0}, {0xffffffff, 1, 0xffffffff}});  // a length has 32 bits
  expect_block({}, {kPool, 0}, {});
}

TEST(TcpxRxDescriptor, TheOrderOfTheFragmentsIsFree) {
  Entries entries;
  std::uint64_t to = 0;
  std::mt19937 random(1);
  for (std::uint32_t i = 0; i < kMaxFragments; ++i) {
    const auto bytes = static_cast<std::uint32_t>(1 + random() % 4096);
    entries.push_back({i * 8192 + static_cast<std::uint32_t>(random() % 4096), bytes, to});
    to += bytes;
  }
  const Entries in_order = entries;
  std::shuffle(entries.begin(), entries.end(), random);
  expect_block(entries, {kPool, to}, in_order);
  entries.push_back({0, 1, to});
  expect_refused(entries, {kPool, to + 1}, {"2049 fragments", "2048"});
}

TEST(TcpxRxDescriptor, GapsAreRefused) {
  expect_refused({{0, 10, 0}, {64, 10, 11}}, {kPool, 21},
                 {"gap", "bytes 10 to 10", "entry 1 (10 bytes at 64 of the pool, for 11)"});
  expect_refused({{0, 10, 5}}, {kPool, 15}, {"gap", "bytes 0 to 4", "entry 0"});
  expect_refused({{0, 10, 0}}, {kPool, 11}, {"1 entries have 10 bytes, the receive has 11"});
  expect_refused({}, {kPool, 1}, {"0 entries have 0 bytes, the receive has 1"});
}

TEST(TcpxRxDescriptor, OverlapsAreRefused) {
  expect_refused({{64, 10, 9}, {0, 10, 0}}, {kPool, 19}, {"entry 0", "overlaps entry 1"});
  expect_refused({{0, 10, 0}, {64, 10, 0}}, {kPool, 10}, {"entry 1", "overlaps entry 0"});
  expect_refused({{0, 10, 0}, {64, 2, 4}}, {kPool, 10}, {"entry 1 (2 bytes", "overlaps entry 0"});
}

TEST(TcpxRxDescriptor, WhatLeavesThePoolOrTheReceiveIsRefused) {
  expect_block({{90, 10, 0}}, {100, 10}, {{90, 10, 0}});
  expect_refused({{91, 10, 0}}, {100, 10}, {"entry 0 (10 bytes at 91", "pool of 100 bytes"});
  expect_refused({{101, 1, 0}}, {100, 10}, {"leaves the pool"});
  expect_refused({{0xffffffff, 0xffffffff, 0}}, {0xffffffff, kPool}, {"leaves the pool"});
  expect_refused({{0, 10, 1}}, {100, 10}, {"entry 0", "leaves the receive of 10 bytes"});
  expect_refused({{0, 2, ~std::uint64_t{0}}}, {100, ~std::uint64_t{0}}, {"leaves the receive"});
  expect_refused({{0, 10, 0}, {64, 0, 10}}, {100, 10}, {"entry 1 (0 bytes", "has no bytes"});
}

TEST(TcpxRxDescriptor, LinearPiecesKeepTheirPlace) {
  const auto control = test::RxControl()
                           .upstream(kScmDevmemLinear, 0, 20)
                           .upstream(kScmDevmemDmabuf, 4096, 100, 1, 7)
                           .upstream(kScmDevmemDmabuf, 4196, 50, 2, 7)
                           .upstream(kScmDevmemLinear, 0, 5)
                           .upstream(kScmDevmemDmabuf, 4246, 1, 3, 7);
  RxMessage message;
  ASSERT_TRUE(parse_control(control.bytes(), 0, message).ok());
  const auto block = DescriptorBlock::of(message, {8192, 176, 7});
  ASSERT_TRUE(block.ok()) << block.status().to_string();
  expect_entries(block->entries(), {{4096, 150, 20}, {4246, 1, 175}});
  EXPECT_EQ(block->bytes(), 151u);
  EXPECT_EQ(block->fragments(), 3u);

  const auto text = [&message](const RxBounds& bounds) {
    return DescriptorBlock::of(message, bounds).status().what();
  };
  EXPECT_NE(text({8192, 176, 6})
                .find("entry 0 (100 bytes at 4096 of the pool, for 20) lies in "
                      "DMA-BUF 7, the pool is 6"),
            std::string::npos);
  EXPECT_NE(text({4246, 176, 7}).find("entry 2"), std::string::npos);
  EXPECT_NE(text({8192, 177, 7}).find("have 176 bytes, the receive has 177"), std::string::npos);
  message.linear.pop_back();
  EXPECT_NE(text({8192, 176, 7}).find("bytes 170 to 174"), std::string::npos);
  message.linear[0].bytes = 21;
  EXPECT_NE(text({8192, 176, 7}).find("overlaps linear piece 0 (21 bytes"), std::string::npos);
  message.fragments[1].src_off = kPool;  // more than a LoadMeta can say
  EXPECT_NE(text({4 * kPool, 176, 7}).find("entry 1"), std::string::npos);
}

TEST(TcpxRxDescriptor, ASlotOfThePluginsQueue) {
  const auto queue = std::make_unique<MetaQueue>();
  for (std::size_t slot = 0; slot < kMetaSlots; ++slot) {
    queue->counts[slot] = slot;
    for (std::uint32_t i = 0; i < slot; ++i)
      queue->entries[slot][i] = {static_cast<std::uint32_t>(slot) * 65536 + i * 200, 100,
                                 std::uint64_t{i} * 100};
  }
  for (std::size_t slot = 0; slot < kMetaSlots; ++slot) {
    const auto block = DescriptorBlock::of_slot(*queue, slot, {kPool, slot * 100});
    ASSERT_TRUE(block.ok()) << block.status().to_string();
    expect_entries(block->entries(), {queue->entries[slot], queue->entries[slot] + slot});
  }
  EXPECT_EQ(DescriptorBlock::of_slot(*queue, 16, {kPool, 0}).status().code(),
            Code::invalid_argument);
  for (const std::uint64_t count : {std::uint64_t{2049}, ~std::uint64_t{0}}) {
    queue->counts[3] = count;
    const Status status = DescriptorBlock::of_slot(*queue, 3, {kPool, 300}).status();
    EXPECT_EQ(status.code(), Code::corrupt);
    EXPECT_NE(status.what().find(std::to_string(count) + " fragments"), std::string::npos);
  }
}

}  // namespace tcpx_rx_descriptor_test
}  // namespace linkspan::transport::nccl_net::tcpx
