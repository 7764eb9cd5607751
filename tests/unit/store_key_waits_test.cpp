#include <gtest/gtest.h>

#include "store/key_waits.hpp"

namespace linkspan::store {
namespace store_key_waits_test {

TEST(StoreKeyWaits, AreCompleteWithTheirLastKey) {
  KeyWaits waits;
  waits.add(1, "a");
  waits.add(1, "b");
  waits.add(1, "b");
  waits.add(2, "a");
  EXPECT_EQ(waits.allocated(1), 2 * waits.allocated(2));
  EXPECT_EQ(waits.pop_complete("a"), 2U);
  EXPECT_EQ(waits.pop_complete("a"), std::nullopt);
  EXPECT_FALSE(waits.has(2));
  EXPECT_TRUE(waits.has(1));
  EXPECT_EQ(waits.pop_complete("b"), 1U);
  EXPECT_FALSE(waits.has(1));
  EXPECT_EQ(waits.allocated(1), 0U);
}

TEST(StoreKeyWaits, CompleteTheOldestConnectionFirst) {
  KeyWaits waits;
  for (const std::uint64_t id : {3U, 1U, 2U}) waits.add(id, "a");
  EXPECT_EQ(waits.pop_complete("a"), 1U);
  EXPECT_EQ(waits.pop_complete("a"), 2U);
  EXPECT_EQ(waits.pop_complete("a"), 3U);
}

TEST(StoreKeyWaits, DoNotReturnARemovedConnection) {
  KeyWaits waits;
  waits.add(1, "a");
  waits.remove(1);
  waits.remove(1);
  EXPECT_FALSE(waits.has(1));
  EXPECT_EQ(waits.pop_complete("a"), std::nullopt);
}

}  // namespace store_key_waits_test
}  // namespace linkspan::store
