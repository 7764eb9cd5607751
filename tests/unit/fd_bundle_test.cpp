#include "base/fd_bundle.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "tests/support/no_memory.hpp"
#include "tests/support/take.hpp"

namespace linkspan::base {
namespace fd_bundle_test {

using test::take;

Fd file(std::uint64_t bytes) {
  Fd fd = take(Fd::from("memfd_create", ::memfd_create("parcel", MFD_CLOEXEC)));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

TEST(FdBundle, BringsEachFdWithItsNumberInOrder) {
  for (const std::uint64_t count :
       {std::uint64_t{0}, std::uint64_t{1}, FdBundle::kBatch, std::uint64_t{300}}) {
    FdBundle parcel = take(FdBundle::create());
    for (std::uint64_t i = 0; i < count; ++i) ASSERT_TRUE(parcel.put(file(i), i).ok());
    const Fd sealed = take(parcel.seal());
    std::uint64_t came = 0;
    for (;;) {
      const auto batch = take(FdBundle::pop_batch(sealed));
      if (batch.empty()) break;
      for (const NumberedFd& each : batch) {
        struct stat facts {};
        ASSERT_EQ(::fstat(each.fd.get(), &facts), 0);
        EXPECT_EQ(each.number, came);
        EXPECT_EQ(static_cast<std::uint64_t>(facts.st_size), came++);
      }
    }
    EXPECT_EQ(came, count);
  }
}

TEST(FdBundle, KeepsTheFds_WhenMemoryEnds) {
  FdBundle parcel = take(FdBundle::create());
  for (std::uint64_t i = 0; i < 300; ++i) ASSERT_TRUE(parcel.put(file(i), i).ok());
  const Fd sealed = take(parcel.seal());
  std::uint64_t came = 0;
  std::vector<NumberedFd> batch;
  test::fail_each_allocation([&] { batch = take(FdBundle::pop_batch(sealed)); },
                             [&](bool threw) {
                               if (threw) batch = take(FdBundle::pop_batch(sealed));
                               for (const NumberedFd& each : batch) EXPECT_EQ(each.number, came++);
                             });
  while (!(batch = take(FdBundle::pop_batch(sealed))).empty()) came += batch.size();
  EXPECT_EQ(came, 300u);
}

TEST(FdBundle, WhatIsNoneIsCorrupt) {
  EXPECT_EQ(FdBundle::pop_batch(file(100)).status().code(), Code::corrupt);
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const Fd ours(ends[0]), theirs(ends[1]);
  // Nothing in it, and its other end is open: an answer, and at once.
  EXPECT_EQ(FdBundle::pop_batch(theirs).status().code(), Code::corrupt);
  const std::uint64_t numbers[3] = {};
  for (const std::size_t bytes : {std::size_t{5}, std::size_t{8}, sizeof numbers}) {
    ASSERT_EQ(::send(ours.get(), numbers, bytes, 0), static_cast<ssize_t>(bytes));
    EXPECT_EQ(FdBundle::pop_batch(theirs).status().code(), Code::corrupt) << bytes;
  }
}

TEST(FdBundle, HoldsAsManyAsItSays) {
  FdBundle parcel = take(FdBundle::create());
  const Fd one = file(1);
  for (std::size_t i = 0; i < FdBundle::kMax; ++i) {
    const Status status = parcel.put(take(one.duplicate()), i);
    if (status.code() == Code::no_resource) {  // this user may not have that many in flight
      EXPECT_NE(status.what().find("ulimit -n"), std::string::npos) << status.what();
      return;
    }
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  const Fd sealed = take(parcel.seal());
  std::size_t came = 0;
  for (std::size_t batch = 1; batch != 0; came += batch)
    batch = take(FdBundle::pop_batch(sealed)).size();
  EXPECT_EQ(came, FdBundle::kMax);
}

}  // namespace fd_bundle_test
}  // namespace linkspan::base
