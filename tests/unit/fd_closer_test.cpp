#include "base/fd_closer.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <memory>
#include <thread>
#include <vector>

#include "tests/support/lingering_socket.hpp"

namespace linkspan::base::fd_closer_test {

using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(Clock::steady(), 10s); }

bool is_open(int raw) { return ::fcntl(raw, F_GETFD) >= 0; }

/// Waits until the descriptor is closed. Returns false after 10 s.
bool ends(int raw) {
  const Deadline limit = soon();
  while (is_open(raw) && !limit.passed()) std::this_thread::yield();
  return !is_open(raw);
}

/// Has `sink` close a new one. Its number.
int give_one(const std::shared_ptr<FdSink>& sink) {
  Fd fd(::eventfd(0, EFD_CLOEXEC));
  fd.close_by(sink);
  return fd.get();
}

TEST(FdCloser, ClosesWhatEnds) {
  FdCloser closer;
  EXPECT_TRUE(ends(give_one(closer.sink())));
  EXPECT_FALSE(closer.full());
  EXPECT_TRUE(closer.end(soon()).ok());
}

TEST(FdCloser, KeepsOneThreadStanding_ForEachProcess) {
  FdCloser closer;
  std::vector<std::unique_ptr<test::LingeringSocket>> standing;
  const auto hostile = closer.sink();
  for (std::size_t i = 0; i < 2 * FdCloser::kThreads; ++i) {
    standing.push_back(std::make_unique<test::LingeringSocket>());
    standing.back()->socket.close_by(hostile);
    standing.back()->socket = Fd();
  }
  EXPECT_TRUE(ends(give_one(closer.sink()))) << "of another process";
  for (const auto& each : standing) each->end();
  EXPECT_TRUE(closer.end(soon()).ok());
}

TEST(FdCloser, CountsByProcess_NotByConnection) {
  FdCloser closer;
  int ends[2] = {};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const Fd near(ends[0]), far(ends[1]);
  const auto sink = closer.sink_of(near.get());
  EXPECT_EQ(closer.sink_of(far.get()), sink) << "both are of this process";
  EXPECT_NE(closer.sink(), sink);
}

TEST(FdCloser, IsFullForAProcess_WhoseDescriptorStandsStill) {
  FdCloser closer;
  test::LingeringSocket standing;
  const auto hostile = closer.sink(), other = closer.sink();
  standing.socket.close_by(hostile);
  standing.socket = Fd();
  for (std::size_t i = 0; i < FdCloser::kMaxOfStanding; ++i) (void)give_one(hostile);
  const Deadline limit = soon();
  while (!hostile->full() && !limit.passed()) std::this_thread::yield();
  EXPECT_TRUE(hostile->full());
  EXPECT_FALSE(other->full());
  EXPECT_FALSE(closer.full());
  standing.end();
  EXPECT_TRUE(closer.end(soon()).ok());
  EXPECT_FALSE(hostile->full());
}

TEST(FdCloser, EndsByADeadline_WhereACloseStandsStill) {
  test::LingeringSocket standing;
  FdCloser closer;
  standing.socket.close_by(closer.sink());
  standing.socket = Fd();
  const Time begin = Clock::steady().now();
  EXPECT_EQ(closer.end(Deadline::after(Clock::steady(), 10ms)).code(), Code::timed_out);
  EXPECT_LT(Clock::steady().now() - begin, 10s);
  standing.end();
  EXPECT_TRUE(closer.end(soon()).ok());
}

TEST(FdCloser, ClosesInItsCallerOnceItHasEnded) {
  FdCloser closer;
  const auto sink = closer.sink();
  EXPECT_TRUE(closer.end(soon()).ok());
  const int raw = give_one(sink);
  EXPECT_FALSE(is_open(raw));
}

TEST(FdCloser, ClosesADuplicateToo_AndNotWhatIsTrusted) {
  FdCloser closer;
  Fd fd(::eventfd(0, EFD_CLOEXEC));
  fd.close_by(closer.sink());
  auto second = fd.duplicate();
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->sink(), fd.sink());
  second->trust();
  const int raw = second->get();
  *second = Fd();
  EXPECT_FALSE(is_open(raw));
  (void)Fd(fd.release());
}

}  // namespace linkspan::base::fd_closer_test
