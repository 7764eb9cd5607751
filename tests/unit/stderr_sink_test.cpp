// Tests a stderr that takes no line for now: logging threads do not wait, and lost lines are
// counted.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "base/fd.hpp"
#include "base/log.hpp"
#include "tests/support/take.hpp"

namespace linkspan::base {
namespace stderr_sink_test {

using namespace std::chrono_literals;
using test::take;

/// Both ends of a possible stderr; one is read.
struct Ends {
  Fd read, write;
};

Ends ends_of(const std::string& kind) {
  int ends[2] = {-1, -1};
  if (kind == "pipe") {
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    return {Fd(ends[0]), Fd(ends[1])};
  }
  if (kind == "socket") {
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw std::runtime_error("no sockets");
    return {Fd(ends[0]), Fd(ends[1])};
  }
  Fd terminal = take(Fd::from("posix_openpt", ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)));
  std::array<char, 64> name{};
  if (::grantpt(terminal.get()) != 0 || ::unlockpt(terminal.get()) != 0 ||
      ::ptsname_r(terminal.get(), name.data(), name.size()) != 0)
    throw std::runtime_error("no terminal");
  Fd program = take(Fd::from("open", ::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC)));
  return {std::move(terminal), std::move(program)};
}

class StderrSink : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ends_ = ends_of(GetParam());
    before_ = take(Fd::from("dup", ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)));
    ASSERT_EQ(::dup2(ends_.write.get(), STDERR_FILENO), STDERR_FILENO);
  }
  void TearDown() override { ::dup2(before_.get(), STDERR_FILENO); }

  /// Reads until `end` is there, or for 10 s nothing comes.
  std::string hear(const std::string& end) {
    std::string all;
    std::array<char, 4096> some{};
    while (all.find(end) == std::string::npos) {
      pollfd ready{.fd = ends_.read.get(), .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, 10'000) != 1) break;
      const ssize_t got = ::read(ends_.read.get(), some.data(), some.size());
      if (got <= 0) break;
      all.append(some.data(), static_cast<std::size_t>(got));
    }
    return all;
  }

  Ends ends_;
  Fd before_;
};

/// Far more than any of them takes, and than the queue does. Where the sink waited, this reads to
/// let it go.
TEST_P(StderrSink, NeverWaitsAndCountsWhatIsLost_WhenItIsNotRead) {
  constexpr int kLines = 20'000;
  const Log log(Level::info, stderr_sink());
  std::atomic<bool> done{false};
  std::jthread writer([&] {
    for (int i = 0; i < kLines; ++i) log.write(Level::info, std::string(200, 'x'));
    done = true;
  });
  const Deadline limit = Deadline::after(Clock::steady(), 20s);
  while (!done && !limit.passed()) (void)::poll(nullptr, 0, 1);
  EXPECT_TRUE(done) << "it waits for its reader";
  const std::string heard = hear("lines of the log are lost");
  EXPECT_EQ(heard.find("[INFO] xxx"), 0u) << heard.substr(0, 80);
  EXPECT_NE(heard.find("[WARNING] "), std::string::npos);
}

TEST_P(StderrSink, LosesNothing_WhenItIsReadLate) {
  const Log log(Level::info, stderr_sink());
  for (int i = 0; i < 1000; ++i) log.write(Level::info, std::string(200, 'x'));
  log.write(Level::error, "the last line");
  const std::string heard = hear("the last line");
  EXPECT_GE(heard.size(), 1000u * 207);
  EXPECT_NE(heard.find("[ERROR] the last line"), std::string::npos);
}

TEST_P(StderrSink, HasWrittenALine_WhenItReturnsAndThereIsRoom) {
  const Log log(Level::info, stderr_sink());
  log.write(Level::info, "at once");
  pollfd ready{.fd = ends_.read.get(), .events = POLLIN, .revents = 0};
  // A terminal's line, and before Linux 6.4 a pipe's, is written by a thread, which a busy machine
  // may delay.
  EXPECT_EQ(::poll(&ready, 1, GetParam() == std::string("socket") ? 0 : 10'000), 1);
}

TEST_P(StderrSink, Ends_WhenItIsNotRead) {
  const base::Time begin = Clock::steady().now();
  {
    const Log log(Level::info, stderr_sink());
    for (int i = 0; i < 2000; ++i) log.write(Level::info, std::string(200, 'x'));
  }
  EXPECT_LT(Clock::steady().now() - begin, 10s);
}

TEST_P(StderrSink, CutsALineThatIsTooLong) {
  const Log log(Level::info, stderr_sink());
  log.write(Level::info, std::string(100'000, 'x'));
  log.write(Level::info, "the next");
  const std::string heard = hear("the next");
  EXPECT_NE(heard.find("x..."), std::string::npos);
  EXPECT_LT(heard.size(), 5000u);
}

INSTANTIATE_TEST_SUITE_P(To, StderrSink, ::testing::Values("pipe", "socket", "terminal"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace stderr_sink_test
}  // namespace linkspan::base
