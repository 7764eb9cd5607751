#include "memory/region.hpp"

#include <gtest/gtest.h>

namespace linkspan::memory {

constexpr std::uint64_t kMax = ~std::uint64_t{0};

TEST(Fits, NeverOverflows) {
  EXPECT_TRUE(fits(0, 0, 0));
  EXPECT_TRUE(fits(10, 0, 10));
  EXPECT_TRUE(fits(4, 6, 10));
  EXPECT_FALSE(fits(4, 7, 10));
  EXPECT_FALSE(fits(11, 0, 10));
  EXPECT_FALSE(fits(kMax, 2, 10));
  EXPECT_FALSE(fits(5, kMax, 10));
  EXPECT_FALSE(fits(kMax, kMax, kMax));
  EXPECT_TRUE(fits(0, kMax, kMax));
}

TEST(Region, LiesWithinItsAllocation) {
  Region::Facts facts;
  facts.allocation = 0x10000;
  facts.allocation_bytes = 0x1000;
  const auto at = [&](std::uint64_t address, std::uint64_t bytes) {
    facts.address = address;
    facts.bytes = bytes;
    return Region::create(facts);
  };
  ASSERT_TRUE(at(0x10000, 0x1000).ok());
  const auto inside = at(0x10ff0, 0x10);
  ASSERT_TRUE(inside.ok());
  EXPECT_EQ((*inside)->bytes(), 0x10u);
  EXPECT_EQ((*inside)->facts().address, 0x10ff0u);
  EXPECT_EQ(at(0x10ff0, 0x11).status().code(), Code::invalid_argument);
  EXPECT_EQ(at(0xffff, 1).status().code(), Code::invalid_argument);
  EXPECT_EQ(at(0x10000, kMax).status().code(), Code::invalid_argument);
  EXPECT_EQ(at(kMax, 2).status().code(), Code::invalid_argument);
}

TEST(Region, RefusesAnAllocationThatWraps) {
  Region::Facts facts;
  facts.address = facts.allocation = kMax - 10;
  facts.allocation_bytes = 100;
  facts.bytes = 1;
  EXPECT_FALSE(Region::create(facts).ok());
}

TEST(RegionId, ComparesAllItsParts) {
  const RegionId id{1, 2, 3};
  EXPECT_EQ(id, (RegionId{1, 2, 3}));
  EXPECT_NE(id, (RegionId{0, 2, 3}));
  EXPECT_NE(id, (RegionId{1, 0, 3}));
  EXPECT_NE(id, (RegionId{1, 2, 0}));
}

}  // namespace linkspan::memory
