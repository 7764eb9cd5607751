#include "base/handle_table.hpp"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <set>

namespace linkspan::base {

TEST(HandleTable, FindsWhatIsThereAndNothingElse) {
  HandleTable<std::unique_ptr<int>> table;
  const std::uint64_t id = table.insert(std::make_unique<int>(5));
  ASSERT_NE(table.find(id), nullptr);
  EXPECT_EQ(**table.find(id), 5);
  EXPECT_EQ(table.find(0), nullptr);
  EXPECT_EQ(table.find(id + 1), nullptr);
  EXPECT_EQ(table.find(id + (std::uint64_t{1} << 32)), nullptr);
  EXPECT_EQ(table.find(~std::uint64_t{0}), nullptr);
}

TEST(HandleTable, AStaleIdIsNotFoundThoughItsSlotIsUsedAgain) {
  HandleTable<int> table;
  const std::uint64_t old = table.insert(1);
  EXPECT_EQ(table.extract(old), 1);
  EXPECT_EQ(table.extract(old), std::nullopt);
  const std::uint64_t fresh = table.insert(2);
  EXPECT_EQ(static_cast<std::uint32_t>(fresh), static_cast<std::uint32_t>(old));  // same slot
  EXPECT_NE(fresh, old);
  EXPECT_EQ(table.find(old), nullptr);
  EXPECT_EQ(*table.find(fresh), 2);
  EXPECT_EQ(table.size(), 1u);
}

TEST(HandleTable, ValuesStayWhereTheyAre) {
  HandleTable<int> table;
  const std::uint64_t id = table.insert(-1);
  const int* at = table.find(id);
  for (int i = 0; i < 10000; ++i) table.insert(i);
  EXPECT_EQ(table.find(id), at);
}

TEST(HandleTable, ForEachMayTakeItsOwn) {
  HandleTable<int> table;
  for (int i = 0; i < 10; ++i) table.insert(i);
  table.for_each([&](std::uint64_t id, int value) {
    if (value % 2 == 0) table.extract(id);
  });
  int sum = 0;
  table.for_each([&](std::uint64_t, int value) { sum += value; });
  EXPECT_EQ(sum, 1 + 3 + 5 + 7 + 9);
}

TEST(HandleTable, AgreesWithAMapUnderRandomUse) {
  HandleTable<unsigned> table;
  std::map<std::uint64_t, unsigned> model;
  std::set<std::uint64_t> given{0};
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): repeatable
  for (unsigned i = 0; i < 20000; ++i) {
    if (random() % 2 == 0 || model.empty()) {
      const std::uint64_t id = table.insert(i);
      EXPECT_TRUE(given.insert(id).second) << "given out twice";
      model[id] = i;
    } else {
      auto it = model.lower_bound(random() % model.rbegin()->first);
      EXPECT_EQ(table.extract(it->first), it->second);
      model.erase(it);
    }
  }
  EXPECT_EQ(table.size(), model.size());
  for (std::uint64_t id : given) EXPECT_EQ(table.find(id) != nullptr, model.contains(id));
}

}  // namespace linkspan::base
