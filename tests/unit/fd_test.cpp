#include "base/fd.hpp"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <utility>

namespace linkspan::base {
namespace fd_test {

Fd make() { return Fd(::eventfd(0, EFD_CLOEXEC)); }
bool open_now(int raw) { return ::fcntl(raw, F_GETFD) >= 0; }

TEST(Fd, ClosesWhatItOwnsOnce) {
  int raw = -1;
  {
    const Fd fd = make();
    raw = fd.get();
    EXPECT_TRUE(open_now(raw));
  }
  EXPECT_FALSE(open_now(raw));
  EXPECT_FALSE(Fd().valid());
}

TEST(Fd, MovesItsOwnership) {
  Fd first = make();
  const int raw = first.get();
  Fd second(std::move(first));
  EXPECT_FALSE(first.valid());  // NOLINT: a moved-from Fd holds none
  EXPECT_EQ(second.get(), raw);

  Fd third = make();
  const int closed = third.get();
  third = std::move(second);
  EXPECT_FALSE(open_now(closed));
  EXPECT_TRUE(open_now(raw));
  Fd& same = third;
  third = std::move(same);
  EXPECT_EQ(third.get(), raw);
  EXPECT_TRUE(open_now(raw));
}

TEST(Fd, ReleaseGivesItAway) {
  Fd fd = make();
  const Fd again(fd.release());
  EXPECT_FALSE(fd.valid());
  EXPECT_TRUE(open_now(again.get()));
}

TEST(Fd, FromSaysWhichCallFailed) {
  const Result<Fd> bad = Fd::from("open", ::open("/nowhere/at/all", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(bad.status().code(), Code::system);
  EXPECT_EQ(bad.status().what(), "open: No such file or directory");
}

TEST(Fd, DuplicatesCloseOnExec) {
  const Fd fd = make();
  const Result<Fd> copy = fd.duplicate();
  ASSERT_TRUE(copy.ok());
  EXPECT_NE(copy->get(), fd.get());
  EXPECT_EQ(::fcntl(copy->get(), F_GETFD), FD_CLOEXEC);
  EXPECT_FALSE(Fd().duplicate().ok());
}

}  // namespace fd_test
}  // namespace linkspan::base
