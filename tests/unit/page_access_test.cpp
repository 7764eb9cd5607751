#include "memory/page_access.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/registry.hpp"

namespace linkspan::memory {
namespace page_access_test {

constexpr std::size_t kPage = 4096, kPages = 8;

class PageAccessTest : public ::testing::Test {
 protected:
  PageAccessTest()
      : pages_(static_cast<std::byte*>(::mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~PageAccessTest() override { ::munmap(pages_, kPages * kPage); }
  void protect(std::size_t page, int rights) { ::mprotect(pages_ + page * kPage, kPage, rights); }
  std::uint64_t address_of(std::size_t page) const {
    return reinterpret_cast<std::uintptr_t>(pages_) + page * kPage;
  }
  Status add(std::size_t page, std::size_t count, Permissions peers) {
    return registry_.add(pages_ + page * kPage, count * kPage, peers, false).status();
  }

  std::byte* const pages_;
  Registry registry_{1, nullptr};
};

TEST_F(PageAccessTest, SeesEachMappingOfTheRange) {
  protect(3, PROT_READ);
  protect(5, PROT_NONE);
  const auto is = [&](std::size_t page, std::size_t count, bool read, bool write) {
    const PageAccess access = page_access(address_of(page) + 1, count * kPage - 2);
    return access.read == read && access.write == write;
  };
  EXPECT_TRUE(is(0, 3, true, true));
  EXPECT_TRUE(is(0, 4, true, false));
  EXPECT_TRUE(is(2, 3, true, false));
  EXPECT_TRUE(is(4, 2, false, false));
  EXPECT_TRUE(is(6, 2, true, true));
  ::munmap(pages_ + 6 * kPage, kPage);
  EXPECT_TRUE(is(6, 2, false, false));
}

TEST(PageRangeTest, IsParsed_WhateverTheFileIsCalled) {
  const auto file = parse_range("7f00-8f00 r--p 00001000 fd:01 42    /tmp/ 00:00 0 x");
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->begin, 0x7f00u);
  EXPECT_EQ(file->end, 0x8f00u);
  EXPECT_TRUE(file->access.read && !file->access.write && file->of_file);
  EXPECT_FALSE(parse_range("1000-2000 rw-p 00000000 00:00 0")->of_file);
  EXPECT_FALSE(parse_range("1000-2000 -w-p 00000000 00:00 0    [heap]")->of_file);
  EXPECT_FALSE(parse_range("1000-2000 -w-p 00000000 00:00 0")->access.read);
  EXPECT_FALSE(parse_range("1000-2000 rw-s 00000000 00:01 7    /dev/zero (deleted)")->of_file);
  EXPECT_TRUE(parse_range("1000-2000 rw-s 00000000 00:01 7    /memfd:x (deleted)")->of_file);
  for (const char* other : {"", "Anonymous:   4 kB", "1000", "1000-", "1000-2000", "VmFlags: rd"})
    EXPECT_FALSE(parse_range(other).has_value()) << other;
}

TEST_F(PageAccessTest, RefusesRightsThatPagesDoNotHave) {
  protect(1, PROT_READ);
  protect(4, PROT_NONE);
  const Status write = add(0, 3, {.read = true, .write = true});
  EXPECT_EQ(write.code(), Code::invalid_argument);
  EXPECT_NE(write.what().find("peers_write"), std::string::npos) << write.what();
  EXPECT_EQ(add(0, 3, {.read = true}).to_string(), "ok");
  const Status read = add(4, 1, {.read = true});
  EXPECT_EQ(read.code(), Code::invalid_argument);
  EXPECT_NE(read.what().find("peers_read"), std::string::npos) << read.what();
  EXPECT_EQ(add(2, 2, {.read = true, .write = true}).to_string(), "ok");
}

TEST_F(PageAccessTest, SeesPagesBehindTheEndOfAFile) {
  const int file = ::memfd_create("shrinks", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(file, 2 * kPage), 0);
  void* const mapped = ::mmap(nullptr, 2 * kPage, PROT_READ, MAP_SHARED, file, 0);
  const auto at = reinterpret_cast<std::uintptr_t>(mapped);
  EXPECT_TRUE(pages_are_readable(at + 100, 2 * kPage - 100));
  ASSERT_EQ(::ftruncate(file, kPage), 0);
  EXPECT_TRUE(pages_are_readable(at, kPage));
  EXPECT_FALSE(pages_are_readable(at, kPage + 1));
  ::munmap(mapped, 2 * kPage);
  EXPECT_FALSE(pages_are_readable(at, 1));
  ::close(file);
}

}  // namespace page_access_test
}  // namespace linkspan::memory
