// Tests what a write of one block, or of one in each pair of regions, costs the thread that submits
// it: locks and heap allocations.
// DriverCallsOf counts the calls of the driver.
#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <vector>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace write_cost_test {

struct Cost {
  unsigned locks = 0, allocations = 0;
};
thread_local Cost* counted = nullptr;

}  // namespace write_cost_test
}  // namespace linkspan::test

// The linker leads the program's calls to these (cmake/tests.cmake), and none of a library's.
extern "C" {
int __real_pthread_mutex_lock(pthread_mutex_t* mutex);                   // NOLINT
void* __real__Znwm(std::size_t bytes);                                   // NOLINT
void* __real__ZnwmSt11align_val_t(std::size_t bytes, std::align_val_t);  // NOLINT

int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {  // NOLINT
  if (auto* const cost = linkspan::test::write_cost_test::counted) ++cost->locks;
  return __real_pthread_mutex_lock(mutex);
}
void* __wrap__Znwm(std::size_t bytes) {  // NOLINT
  if (auto* const cost = linkspan::test::write_cost_test::counted) ++cost->allocations;
  return __real__Znwm(bytes);
}
void* __wrap__ZnwmSt11align_val_t(std::size_t bytes, std::align_val_t align) {  // NOLINT
  if (auto* const cost = linkspan::test::write_cost_test::counted) ++cost->allocations;
  return __real__ZnwmSt11align_val_t(bytes, align);
}
}

namespace linkspan::test {
namespace write_cost_test {

using namespace std::chrono_literals;

struct CostCase {
  const char* name;
  Kind near, far;
  unsigned prepared;  // number of prepared pairs of regions; 0: a write
  Cost most;
  bool with_wait = false;  // it ends in its submission, so the wait costs nothing
};

// The bookkeeping of peers, that of the peer, the copiers. What has ended leaves its memory for
// what comes.
const CostCase kCases[] = {
    {"between_gpus", kKinds[0], kKinds[1], 0, {3, 0}},
    {"between_gpus_prepared", kKinds[0], kKinds[1], 1, {3, 0}},
    {"shared_memory", kKinds[4], kKinds[4], 0, {3, 0}, true},
    {"shared_memory_prepared", kKinds[4], kKinds[4], 1, {3, 0}, true},
    // Locks as of eight writes. The list of pairs is allocated, and now and then room in a queue.
    {"shared_memory_prepared_pairs", kKinds[4], kKinds[4], 8, {8 * 3, 2}},
};

class WriteCost : public ::testing::TestWithParam<CostCase> {
 protected:
  void SetUp() override {
    if (Status status = kinds_here({GetParam().near, GetParam().far}); !status.ok())
      GTEST_SKIP() << status.to_string();
  }
};

TEST_P(WriteCost, OfOneBlockIsAFewLocksAndAllocations_AsListed) {
  constexpr std::uint64_t kBytes = 100;
  constexpr std::size_t kWrites = 41;
  Held here;  // outlives the Engine
  Pair pair;
  here = Held::make(pair.engine, {.kind = GetParam().near.name, .bytes = 4096});
  pair.far.add("there", {.kind = GetParam().far.name, .bytes = 4096});
  const RemoteRegion there = pair.remote("there");
  const Block blocks[] = {{1, 3, kBytes}};
  here.fill(1);
  pair.far.fill("there", 2);
  const std::vector<Region> all_here(GetParam().prepared, here.region);
  const std::vector<RemoteRegion> all_there(GetParam().prepared, there);
  const Prepared prepared =
      take(all_here.size() > 1 ? pair.peer.prepare(Op::write, all_here, all_there, blocks)
                               : pair.peer.prepare(Op::write, here.region, there, blocks));
  std::vector<unsigned> locks, allocations;
  for (std::size_t i = 0; i < kWrites; ++i) {
    Cost cost;
    counted = &cost;
    auto transfer =
        GetParam().prepared != 0 ? prepared.post() : pair.peer.write(here.region, there, blocks);
    if (GetParam().with_wait && transfer.ok()) (void)transfer->wait(10s);
    counted = nullptr;
    ASSERT_EQ(finished(transfer).to_string(), "ok");
    locks.push_back(cost.locks);
    allocations.push_back(cost.allocations);
  }
  EXPECT_EQ(pair.far.difference("there", 2, {{3, 1, 1, kBytes}}), "");
  // The first set up what is kept. Where the ProgressThread found the peer idle just then, a write
  // takes one lock more.
  for (auto* const counts : {&locks, &allocations}) std::ranges::sort(*counts);
  EXPECT_LE(locks[kWrites / 2], GetParam().most.locks);
  EXPECT_LE(allocations[kWrites / 2], GetParam().most.allocations);
}

INSTANTIATE_TEST_SUITE_P(Every, WriteCost, ::testing::ValuesIn(kCases),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace write_cost_test
}  // namespace linkspan::test
