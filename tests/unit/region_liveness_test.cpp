#include "transport/local/region_liveness.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace linkspan::transport::local {
namespace lease_test {

TEST(RegionLiveness, APeerSeesGrantAndRevoke) {
  auto table = RegionLivenessTable::create();
  ASSERT_TRUE(table.ok()) << table.status().to_string();
  auto fd = (*table)->fd()->duplicate();
  ASSERT_TRUE(fd.ok());
  auto view = RegionLivenessView::open(*fd);
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  auto slot = (*table)->grant(77);
  ASSERT_TRUE(slot.ok());
  EXPECT_TRUE((*view)->entry(*slot, 77).alive());
  EXPECT_FALSE((*view)->entry(*slot, 78).alive());
  EXPECT_FALSE((*view)->entry(kLivenessEntries, 77).alive());
  (*table)->revoke(*slot);
  EXPECT_FALSE((*view)->entry(*slot, 77).alive());
  EXPECT_EQ(*(*table)->grant(79), *slot);
}

TEST(RegionLiveness, APeerCannotWriteIt) {
  auto table = RegionLivenessTable::create();
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, (*table)->fd()->get(), 0),
            MAP_FAILED);
}

TEST(RegionLiveness, AnotherFileIsCorrupt) {
  auto small = base::Fd::from("memfd_create", ::memfd_create("small", MFD_CLOEXEC));
  ASSERT_TRUE(small.ok());
  EXPECT_EQ(RegionLivenessView::open(*small).status().code(), Code::corrupt);
  ASSERT_EQ(::ftruncate(small->get(), kLivenessEntries * 8), 0);  // the size, and not sealed
  EXPECT_EQ(RegionLivenessView::open(*small).status().code(), Code::corrupt);
}

TEST(RegionLiveness, PushesBackWhenAllAreGranted) {
  auto table = RegionLivenessTable::create();
  ASSERT_TRUE(table.ok());
  for (std::uint32_t i = 0; i < kLivenessEntries; ++i) ASSERT_TRUE((*table)->grant(i + 1).ok());
  EXPECT_EQ((*table)->grant(1).status().code(), Code::no_resource);
}

}  // namespace lease_test
}  // namespace linkspan::transport::local
