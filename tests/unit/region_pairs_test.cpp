// Tests lists of pairs of regions: who acquires and releases them, and when the cache drops one.
#include "engine/transfers/region_pairs.hpp"

#include "tests/unit/engine_fixture.hpp"

namespace linkspan::engine {
namespace region_pairs_test {

using test::must, test::take;

class RegionPairsTest : public ::testing::Test {
 protected:
  RegionPairsTest() {
    for (int i = 0; i < 3; ++i) {
      local_.push_back(take(registry_.add(bytes_.data() + 16 * i, 16, {}, false)));
      remote_.push_back(cache_->owned_by_user(test::FakeMemory::remote([this] { ++ended_; })));
    }
  }
  std::vector<TransferEndpoints> pairs(std::size_t first, std::size_t count) const {
    std::vector<TransferEndpoints> pairs;
    for (std::size_t i = first; i < first + count; ++i)
      pairs.push_back({.peer = 1, .local = local_[i], .remote = remote_[i]});
    return pairs;
  }
  AcquiredPairs kept(std::size_t first, std::size_t count) const {
    AcquiredPairs made = AcquiredPairs::make(pairs(first, count));
    cache_->add(AcquiredPairs::share(made.get()));
    return made;
  }
  AcquiredPairs find(std::size_t first, std::size_t count) const {
    return cache_->find(count, [&](std::size_t i, const TransferEndpoints& pair) {
      return pair.local == local_[first + i] && pair.remote == remote_[first + i];
    });
  }
  std::uint32_t users() const {
    std::uint32_t users = 0;
    for (const auto& each : local_) users += each->users();
    return users;
  }

  std::vector<std::byte> bytes_ = std::vector<std::byte>(48);
  memory::Registry registry_{1, nullptr};
  int ended_ = 0;
  std::vector<std::shared_ptr<const memory::Registration>> local_;  // also the registry's
  const std::shared_ptr<RegionPairsCache> cache_ =
      std::make_shared<RegionPairsCache>();  // also of imports
  std::vector<std::shared_ptr<ImportedRegion>> remote_;
};

TEST_F(RegionPairsTest, AcquireAllRegionsOrNone) {
  {
    AcquiredPairs made = AcquiredPairs::make(pairs(0, 3));
    ASSERT_TRUE(made);
    EXPECT_EQ(made->all().size(), 3u);
    EXPECT_EQ(made->for_batch(2).local, &local_[2]->region());
    EXPECT_EQ(made->for_batch(2).remote, remote_[2]->mappings[0].get());
    EXPECT_EQ(users(), 3u);
    const AcquiredPairs other = AcquiredPairs::share(made.get());
    EXPECT_EQ(users(), 3u);
    const auto ended = made.release();
    EXPECT_FALSE(made);
    EXPECT_EQ(users(), 3u) << "the other share is left";
  }
  EXPECT_EQ(users(), 0u);
  must(registry_.remove(local_[2]->id()));
  EXPECT_FALSE(AcquiredPairs::make(pairs(0, 3)));
  EXPECT_EQ(users(), 0u);
}

TEST_F(RegionPairsTest, AreNotAcquiredAgain_AfterAllHaveReleasedThem) {
  AcquiredPairs made = AcquiredPairs::make(pairs(0, 2));
  const auto ended = made.release();
  EXPECT_FALSE(AcquiredPairs::share(ended));
  EXPECT_EQ(users(), 0u);
}

TEST_F(RegionPairsTest, AreAlike_WhereOnePlanIsGoodForAll) {
  EXPECT_TRUE(AcquiredPairs::make(pairs(0, 3))->alike());
  EXPECT_EQ(AcquiredPairs::make(pairs(0, 3))->smallest(), 0u);
  remote_[1]->bytes -= 1;
  EXPECT_TRUE(AcquiredPairs::make(pairs(0, 3))->alike());
  EXPECT_EQ(AcquiredPairs::make(pairs(0, 3))->smallest(), 1u);
  local_[2] = take(registry_.add(bytes_.data(), 15, {}, false));
  EXPECT_FALSE(AcquiredPairs::make(pairs(0, 3))->alike()) << "each is smaller on another side";
  EXPECT_TRUE(AcquiredPairs::make(pairs(2, 1))->alike());
}

TEST_F(RegionPairsTest, AreFoundAgain_WhereTheyAreTheSame) {
  const auto list = kept(0, 2).get();
  EXPECT_EQ(find(0, 2).get(), list);
  EXPECT_FALSE(find(0, 1));
  EXPECT_FALSE(find(1, 2));
  EXPECT_EQ(users(), 2u) << "those of the cache";
}

TEST_F(RegionPairsTest, AreDropped_WhereALocalRegionEnds) {
  (void)kept(0, 2);
  (void)kept(2, 1);
  cache_->drop(*local_[1]);
  EXPECT_FALSE(find(0, 2));
  EXPECT_TRUE(find(2, 1));
  must(registry_.remove(local_[1]->id()));
  EXPECT_EQ(ended_, 0);
}

TEST_F(RegionPairsTest, StayWhileTheUserHasAHandleOfTheImport) {
  (void)kept(0, 2);
  const auto copy = remote_[1];
  remote_[1].reset();
  EXPECT_EQ(users(), 2u);
  remote_[1] = copy;
  EXPECT_TRUE(find(0, 2));
}

TEST_F(RegionPairsTest, UnmapAnImport_WhenTheUserDropsItsLastHandle) {
  (void)kept(0, 2);
  remote_[1].reset();
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(users(), 0u);
  const AcquiredPairs in_flight = AcquiredPairs::make(pairs(2, 1));
  remote_[2].reset();
  EXPECT_EQ(ended_, 1) << "a transfer may still write there";
}

TEST_F(RegionPairsTest, GiveWayToLaterOnes) {
  std::vector<std::shared_ptr<RegionPairs>> lists;
  for (int i = 0; i < 20; ++i) lists.push_back(kept(0, 2).get());
  EXPECT_EQ(users(), 2 * 16u) << "the last 16";
  cache_->clear();
  EXPECT_EQ(users(), 0u);
}

}  // namespace region_pairs_test
}  // namespace linkspan::engine
