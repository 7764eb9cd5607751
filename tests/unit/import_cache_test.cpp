#include "memory/import_cache.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <new>
#include <thread>
#include <vector>

namespace linkspan::memory {
namespace import_cache_test {

using namespace std::chrono_literals;
using base::Clock;
using base::Deadline;

struct Opened {
  explicit Opened(std::atomic<int>& live) : live_(live) { ++live_; }
  Opened(Opened&&) = delete;
  Opened& operator=(Opened&&) = delete;
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  ~Opened() { --live_; }
  std::atomic<int>& live_;
};
using Cache = ImportCache<ImportKey, Opened>;

constexpr ImportKey kKey{1, {2, 0}, 3};

class ImportCacheTest : public testing::Test {
 protected:
  Cache::Open opener() {
    return [this]() -> Result<std::unique_ptr<Opened>> {
      ++opens;
      return std::make_unique<Opened>(live);
    };
  }
  static Deadline soon() { return Deadline::after(Clock::steady(), 10s); }

  Cache cache;
  std::atomic<int> opens{0}, live{0};
};

TEST_F(ImportCacheTest, OpensOnceWhileInUse) {
  std::shared_ptr<Opened> first = *cache.get(kKey, soon(), opener());
  std::shared_ptr<Opened> second = *cache.get(kKey, soon(), opener());
  EXPECT_EQ(first, second);
  EXPECT_EQ(opens, 1);
  EXPECT_EQ(cache.size(), 1u);
  first.reset();
  EXPECT_EQ(live, 1);
  second.reset();
  EXPECT_EQ(live, 0);
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_TRUE(cache.get(kKey, soon(), opener()).ok());
  EXPECT_EQ(opens, 2);
}

TEST_F(ImportCacheTest, KeysDifferInEachPart) {
  std::vector<std::shared_ptr<Opened>> all;
  for (const ImportKey& key : {kKey, ImportKey{9, {2, 0}, 3}, ImportKey{1, {9, 0}, 3},
                               ImportKey{1, {2, 9}, 3}, ImportKey{1, {2, 0}, 9}})
    all.push_back(*cache.get(key, soon(), opener()));
  EXPECT_EQ(live, 5);
  EXPECT_EQ(cache.size(), 5u);
}

TEST_F(ImportCacheTest, AnErrorIsNotRemembered) {
  const auto failed = cache.get(kKey, soon(), []() -> Result<std::unique_ptr<Opened>> {
    return Status(Code::cuda, Scope::request, "no");
  });
  EXPECT_EQ(failed.status().code(), Code::cuda);
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_TRUE(cache.get(kKey, soon(), opener()).ok());
}

TEST_F(ImportCacheTest, AnOpenThatThrowsLetsTheNextOneOpen) {
  const auto throws = []() -> Result<std::unique_ptr<Opened>> { throw std::bad_alloc(); };
  EXPECT_THROW((void)cache.get(kKey, soon(), throws), std::bad_alloc);
  EXPECT_TRUE(cache.get(kKey, Deadline::after(Clock::steady(), 0ms), opener()).ok());
}

TEST_F(ImportCacheTest, OneOpensAndTheOthersWaitForIt) {
  std::latch opening(1), go(1);
  const auto slow = [&]() -> Result<std::unique_ptr<Opened>> {
    opening.count_down();
    go.wait();
    return opener()();
  };
  std::vector<std::shared_ptr<Opened>> got(5);
  {
    std::vector<std::jthread> threads;
    threads.emplace_back([&] { got[0] = *cache.get(kKey, soon(), slow); });
    opening.wait();
    // Another key is not delayed, and a caller without time left gets an error.
    EXPECT_TRUE(cache.get(ImportKey{}, soon(), opener()).ok());
    EXPECT_EQ(cache.get(kKey, Deadline::after(Clock::steady(), 1ms), opener()).status().code(),
              Code::timed_out);
    for (std::size_t i = 1; i < got.size(); ++i)
      threads.emplace_back([&, i] { got[i] = *cache.get(kKey, soon(), opener()); });
    go.count_down();
  }
  EXPECT_EQ(opens, 2);  // kKey and the other key
  for (const auto& value : got) EXPECT_EQ(value, got[0]);
}

TEST_F(ImportCacheTest, WhoWaitedOpensItselfWhenTheOtherFails) {
  std::latch opening(1), go(1);
  std::jthread failing([&] {
    const auto failed = cache.get(kKey, soon(), [&]() -> Result<std::unique_ptr<Opened>> {
      opening.count_down();
      go.wait();
      return Status(Code::cuda, Scope::request, "no");
    });
    EXPECT_FALSE(failed.ok());
  });
  opening.wait();
  std::jthread waiting([&] { EXPECT_TRUE(cache.get(kKey, soon(), opener()).ok()); });
  go.count_down();
  waiting.join();
  EXPECT_EQ(opens, 1);
}

TEST_F(ImportCacheTest, HoldsUnderManyThreads) {
  std::vector<std::jthread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::uint64_t i = 0; i < 500; ++i) {
        const auto value = cache.get(ImportKey{i % 3, {}, 0}, soon(), opener());
        EXPECT_TRUE(value.ok() && *value != nullptr);
        EXPECT_LE(live, 12);
      }
    });
  }
  threads.clear();
  EXPECT_EQ(live, 0);
  EXPECT_EQ(cache.size(), 0u);
}

}  // namespace import_cache_test
}  // namespace linkspan::memory
