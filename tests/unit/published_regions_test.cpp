// Tests PublishedRegions without peers: what is found, and when a region ends.
#include "transport/local/published_regions.hpp"

#include <gtest/gtest.h>

#include "tests/support/no_memory.hpp"
#include "tests/support/take.hpp"

namespace linkspan::transport::local {
namespace published_regions_test {

using test::must, test::take;

class PublishedRegionsTest : public ::testing::Test {
 protected:
  std::shared_ptr<PublishedRegion> add(std::uint64_t serial) {
    auto region = std::make_shared<PublishedRegion>();
    region->key.id.serial = serial;
    (void)take(regions_.add(region, nullptr));
    return region;
  }
  bool alive(const PublishedRegion& region) {
    return take(RegionLivenessView::open(*region.liveness_fd))
        ->entry(region.key.liveness_index, region.key.id.serial)
        .alive();
  }

  PublishedRegions regions_{take(RegionLivenessTable::create())};
};

TEST_F(PublishedRegionsTest, PublishNothing_WhenThereIsNoMemoryForItsKey) {
  test::fail_each_allocation([&] { (void)add(4); },
                             [&](bool threw) {
                               EXPECT_EQ(regions_.find(4) == nullptr, threw);
                               if (!threw) must(regions_.forget(4));
                             });
}

TEST_F(PublishedRegionsTest, FindARegion_UntilItIsRetracted) {
  const auto region = add(4);
  EXPECT_TRUE(alive(*region));
  EXPECT_EQ(regions_.find(4), region);
  EXPECT_EQ(regions_.find(5), nullptr);
  must(regions_.retract(4, false, {}));
  EXPECT_FALSE(alive(*region));
  EXPECT_EQ(regions_.find(4), nullptr);
  EXPECT_EQ(regions_.retract(4, false, {}).code(), Code::not_found);
}

TEST_F(PublishedRegionsTest, StayBusy_WhileACopyForAPeerUsesThem) {
  const auto retracted = add(1), forgotten = add(2);
  retracted->uses = forgotten->uses = 1;
  EXPECT_EQ(regions_.retract(1, true, {}).code(), Code::busy);
  EXPECT_EQ(regions_.forget(2).code(), Code::busy);
  EXPECT_EQ(regions_.find(1), nullptr) << "no copy begins any more";
  EXPECT_FALSE(alive(*forgotten));
  retracted->uses = forgotten->uses = 0;
  must(regions_.retract(1, true, {}));
  must(regions_.forget(2));
}

}  // namespace published_regions_test
}  // namespace linkspan::transport::local
