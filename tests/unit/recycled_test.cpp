// Tests make_recycled(): memory of objects that have ended is used again, by any thread, and no two
// objects have the same.
#include "base/recycled.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <thread>
#include <vector>

namespace linkspan::base {
namespace recycled_test {

struct Object {
  std::uint64_t value = 7;
};

TEST(Recycled, UsesTheMemoryOfWhatHasEnded_AndMakesANewObjectThere) {
  const Object* place = nullptr;
  {
    const auto first = make_recycled<Object>();
    first->value = 8;
    place = first.get();
  }
  const auto second = make_recycled<Object>();
  EXPECT_EQ(second.get(), place);
  EXPECT_EQ(second->value, 7u);
}

TEST(Recycled, GivesEachObjectItsOwnMemory_HoweverManyThereAre) {
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Object>> objects;
    std::set<const Object*> places;
    for (std::uint64_t i = 0; i < 100; ++i) {
      objects.push_back(make_recycled<Object>());
      objects.back()->value = i;
      places.insert(objects.back().get());
    }
    EXPECT_EQ(places.size(), objects.size());
    for (std::uint64_t i = 0; i < objects.size(); ++i) EXPECT_EQ(objects[i]->value, i);
  }
}

TEST(Recycled, GivesSeveralObjectsTheirOwnRoom_BesideThoseOfOne) {
  RecyclingAllocator<Object> memory;
  memory.deallocate(memory.allocate(1), 1);  // kept, and too small for what follows
  std::vector<Object, RecyclingAllocator<Object>> several(100);
  for (const Object& each : several) EXPECT_EQ(each.value, 7u);
  several.shrink_to_fit();
  several = {};
  const auto one = make_recycled<Object>();
  EXPECT_EQ(one->value, 7u);
}

TEST(Recycled, IsMadeAndEndedByAllThreadsAtOnce) {
  std::vector<std::jthread> threads;
  for (std::uint64_t mine = 1; mine <= 4; ++mine)
    threads.emplace_back([mine] {
      for (int i = 0; i < 20000; ++i) {
        const auto one = make_recycled<Object>(), other = make_recycled<Object>();
        one->value = mine;
        other->value = 10 * mine;
        ASSERT_EQ(one->value, mine) << "another thread has the same memory";
        ASSERT_EQ(other->value, 10 * mine);
      }
    });
}

}  // namespace recycled_test
}  // namespace linkspan::base
