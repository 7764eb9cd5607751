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
