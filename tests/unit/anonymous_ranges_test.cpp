#include "memory/anonymous_ranges.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "base/sealed_memory.hpp"
#include "tests/support/silent_pages.hpp"
#include "tests/support/take.hpp"

namespace linkspan::memory {
namespace anonymous_ranges_test {

constexpr std::size_t kPage = 4096, kPages = 8;

class AnonymousRangesTest : public ::testing::Test {
 protected:
  bool is_anonymous(std::size_t begin, std::size_t bytes) {
    return ranges_.contain(reinterpret_cast<std::uintptr_t>(pages_.at()) + begin, bytes);
  }
  /// Maps something else there.
  void map(std::size_t page, int flags, int fd) {
    ::mmap(at(page), kPage, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
    clock_.advance(AnonymousRanges::kFresh);
  }
  void* at(std::size_t page) { return static_cast<std::byte*>(pages_.at()) + page * kPage; }

  base::FakeClock clock_;
  AnonymousRanges ranges_{clock_};
  test::SilentPages pages_{kPages * kPage};
};

TEST_F(AnonymousRangesTest, ContainsAnonymousMemoryOfEachRight) {
  EXPECT_TRUE(is_anonymous(0, kPages * kPage));
  EXPECT_TRUE(is_anonymous(5, 1));
  ::mprotect(at(3), kPage, PROT_READ);  // three mappings
  clock_.advance(AnonymousRanges::kFresh);
  EXPECT_TRUE(is_anonymous(1, kPages * kPage - 2));
  EXPECT_FALSE(is_anonymous(0, std::size_t{1} << 46));
}

TEST_F(AnonymousRangesTest, ReadsMappingsThatWereMadeSince) {
  EXPECT_TRUE(is_anonymous(0, kPage));
  const test::SilentPages fresh(std::size_t{1} << 30);
  EXPECT_TRUE(ranges_.contain(reinterpret_cast<std::uintptr_t>(fresh.at()), std::size_t{1} << 30));
}

TEST_F(AnonymousRangesTest, ContainsSharedMemoryWithoutAFile) {
  map(5, MAP_SHARED | MAP_ANONYMOUS, -1);
  EXPECT_TRUE(is_anonymous(3 * kPage, 5 * kPage));
}

TEST_F(AnonymousRangesTest, LeavesFilesAndHolesOut) {
  const auto file = test::take(base::make_memfd("anonymous_ranges_test", kPage));
  map(2, MAP_PRIVATE, file.get());
  EXPECT_FALSE(is_anonymous(0, kPages * kPage));
  EXPECT_FALSE(is_anonymous(2 * kPage + 1, 1));
  EXPECT_TRUE(is_anonymous(0, 2 * kPage));
  EXPECT_TRUE(is_anonymous(3 * kPage, 5 * kPage));
  map(5, MAP_SHARED, file.get());
  EXPECT_FALSE(is_anonymous(3 * kPage, 5 * kPage));
  ::munmap(at(7), kPage);
  clock_.advance(AnonymousRanges::kFresh);
  EXPECT_TRUE(is_anonymous(6 * kPage, kPage));
  EXPECT_FALSE(is_anonymous(6 * kPage, kPage + 1));
}

TEST_F(AnonymousRangesTest, LeavesMemoryOfAUserfaultfdOut) {
  EXPECT_TRUE(is_anonymous(0, kPage));
  if (!pages_.fall_silent()) GTEST_SKIP() << "needs root, to handle faults of system calls";
  EXPECT_TRUE(is_anonymous(0, kPage)) << "it is read again within kFresh";
  clock_.advance(AnonymousRanges::kFresh);
  EXPECT_FALSE(is_anonymous(0, kPage));
}

}  // namespace anonymous_ranges_test
}  // namespace linkspan::memory
