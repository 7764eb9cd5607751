// Tests the limits on what others may use of a Control: each is reached, answered, and has room
// again.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <thread>
#include <vector>

#include "tests/support/few_fds.hpp"
#include "tests/unit/control_fixture.hpp"

namespace linkspan::control {
namespace control_limits_test {

using namespace std::chrono_literals;
using test::greet_raw, test::next_raw;

/// By a Unix socket and by TCP.
class ControlLimits : public test::ControlFixture,
                      public ::testing::WithParamInterface<const char*> {
 protected:
  void serve(const PeerLimits& limits) {
    ControlFixture::serve(GetParam() == std::string_view("tcp"), limits);
  }
  static void turned_away(base::FdChannel& channel, const std::string& word) {
    const auto said = next_raw(channel);
    ASSERT_TRUE(said.has_value());
    const Status why = decode_error(said->payload);
    EXPECT_EQ(why.code(), Code::no_resource) << why.to_string();
    EXPECT_NE(why.what().find(word), std::string::npos) << why.what();
    EXPECT_FALSE(next_raw(channel).has_value());
  }

  Identity other_{.engine = "client", .incarnation = 12};
};

TEST_P(ControlLimits, ConnectionsAreBoundedAndAnEndMakesRoom) {
  serve({.peers = 2});
  auto first = connect(), second = connect();
  greet_raw(first);
  greet_raw(second);
  EXPECT_EQ(answer(first), Code::not_found);
  EXPECT_EQ(answer(second), Code::not_found);
  auto third = connect();
  turned_away(third, "2 connections");

  auto client = test::take(ControlPlane::open(other_, quiet_, log_));
  const Status full =
      client->connect(at_, base::Deadline::after(base::Clock::steady(), 50ms)).status();
  EXPECT_EQ(full.code(), Code::no_resource) << full.to_string();
  test::send_raw(first, FrameOp::goodbye, {});
  first = base::FdChannel(base::Fd());
  auto session = client->connect(at_, base::Deadline::after(base::Clock::steady(), 10s));
  EXPECT_TRUE(session.ok()) << session.status().to_string();
  client->close(base::Deadline::after(base::Clock::steady(), 1s));
}

TEST_P(ControlLimits, OursCountToo) {
  serve({});
  other_.limits.peers = 0;
  auto client = test::take(ControlPlane::open(other_, quiet_, log_));
  const auto begin = base::Clock::steady().now();
  const Status full =
      client->connect(at_, base::Deadline::after(base::Clock::steady(), 50ms)).status();
  EXPECT_EQ(full.code(), Code::no_resource) << full.to_string();
  EXPECT_LT(base::Clock::steady().now() - begin, 5s);
  client->close(base::Deadline::after(base::Clock::steady(), 1s));
}

/// Checks that `channel` gets the error and is closed.
void expect_error(base::FdChannel& channel, Code code) {
  const auto said = next_raw(channel);
  ASSERT_TRUE(said.has_value());
  EXPECT_EQ(decode_error(said->payload).code(), code);
  EXPECT_FALSE(next_raw(channel).has_value());
}

TEST_P(ControlLimits, WhoSaysNothingIsClosedByADeadline) {
  serve({.handshakes = 2, .handshake = 300ms});
  auto mute = connect(), slow = connect();
  const std::byte drop{24};  // the first byte of a header, and no more
  ASSERT_EQ(::send(slow.fd(), &drop, 1, MSG_NOSIGNAL), 1);
  expect_error(mute, Code::timed_out);
  expect_error(slow, Code::timed_out);
}

TEST_P(ControlLimits, ANewcomerTakesThePlaceOfTheOldestThatIsSilent) {
  serve({.handshakes = 2});
  auto slow = connect();
  const std::byte drop{24};
  ASSERT_EQ(::send(slow.fd(), &drop, 1, MSG_NOSIGNAL), 1);
  auto first = connect(), second = connect();
  expect_error(first, Code::no_resource);
  auto good = connect();
  greet_raw(good);
  expect_error(second, Code::no_resource);
  EXPECT_EQ(answer(good), Code::not_found);
}

/// Connections that have sent something stay for a second.
TEST_P(ControlLimits, ANewcomerIsTurnedAwayWhereNobodyIsSilentAndComesInLater) {
  serve({.handshakes = 2});
  std::vector<base::FdChannel> slow;
  const std::byte drop{24};
  for (int i = 0; i < 2; ++i) {
    slow.push_back(connect());
    ASSERT_EQ(::send(slow.back().fd(), &drop, 1, MSG_NOSIGNAL), 1);
  }
  auto third = connect();
  turned_away(third, "2 handshakes");
  auto client = test::take(ControlPlane::open(other_, quiet_, log_));
  const auto session = client->connect(at_, base::Deadline::after(base::Clock::steady(), 10s));
  EXPECT_TRUE(session.ok()) << session.status().to_string();
  client->close(base::Deadline::after(base::Clock::steady(), 1s));
}

/// A stranger opens many silent connections by TCP and by the Unix socket.
TEST_P(ControlLimits, ThreeHundredSilentOnesKeepNobodyOut) {
  serve({});
  auto met = connect();
  greet_raw(met);
  ASSERT_EQ(answer(met), Code::not_found);
  const auto reach = [this] {  // the queue of a Unix socket may be full for a moment
    auto socket = test::socket_to(at_.to_string());
    while (socket.status().code() == Code::no_resource) socket = test::socket_to(at_.to_string());
    return test::take(std::move(socket));
  };
  std::vector<base::Fd> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(reach());
  for (int i = 0; i < 3; ++i) {
    base::FdChannel good(reach());
    greet_raw(good);
    EXPECT_EQ(answer(good), Code::not_found);
  }
  EXPECT_EQ(answer(met), Code::not_found);
}

class ControlRate : public test::ControlFixture {};

TEST_F(ControlRate, OfUnixSocketsIsBoundedAndWhoWaitsComesIn) {
  constexpr std::size_t kBurst = 10, kASecond = 100, kQueue = 129;
  serve(false, {.local_a_second = kASecond, .local_burst = kBurst});
  const base::Time begin = base::Clock::steady().now();
  const auto passed = [&] { return base::Clock::steady().now() - begin; };
  std::size_t came = 0;
  while (passed() < 500ms || (came <= kQueue + kBurst && passed() < 10s))
    came += test::socket_to(at_.to_string()).ok() ? 1 : 0;
  // The last ones wait in the socket's queue.
  EXPECT_LE(came, kQueue + kBurst + kASecond * static_cast<std::size_t>(passed() / 1ms) / 1000 + 1);
  EXPECT_GT(came, kQueue + kBurst) << "it takes no more than the first ones";

  // The waiting client is accepted after them.
  const Identity other{.engine = "client", .incarnation = 12};
  auto client = test::take(ControlPlane::open(other, quiet_, log_));
  const auto session = client->connect(at_, base::Deadline::after(base::Clock::steady(), 10s));
  EXPECT_TRUE(session.ok()) << session.status().to_string();
  client->close(base::Deadline::after(base::Clock::steady(), 1s));
}

TEST_P(ControlLimits, WithoutFdsItWaitsAndDoesNotSpin) {
  serve({});
  auto before = connect();
  greet_raw(before);
  EXPECT_EQ(answer(before), Code::not_found);
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  ASSERT_EQ(::getpeername(before.fd(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  auto waiting = base::FdChannel(test::take(base::Fd::from(
      "socket", ::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))));
  std::optional<test::FewFds> few(std::in_place, 0);
  const bool connected =
      ::connect(waiting.fd(), reinterpret_cast<const sockaddr*>(&address), bytes) == 0 ||
      errno == EINPROGRESS;
  rusage begin{}, end{};
  ::getrusage(RUSAGE_SELF, &begin);
  std::this_thread::sleep_for(300ms);
  ::getrusage(RUSAGE_SELF, &end);
  few.reset();
  ASSERT_TRUE(connected);
  const auto ms = [](const rusage& use) {
    return (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000 +
           (use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1000;
  };
  EXPECT_LT(ms(end) - ms(begin), 150);
  greet_raw(waiting);
  EXPECT_EQ(answer(waiting), Code::not_found);
  EXPECT_EQ(answer(before), Code::not_found);
}

/// The sessions belong to this process, which lives on and may still touch what each of them was
/// given.
class ControlOfProcess : public test::ControlFixture {
 protected:
  void serve(const PeerLimits& limits) {
    ControlFixture::serve(false, limits);
    tcp_ = test::take(server_->listen(test::take(parse_address("tcp:127.0.0.1:0", {}))));
  }
  /// Returns an established session, or the reason why it was refused.
  Result<base::FdChannel> meet() {
    auto channel = connect();
    greet_raw(channel);
    test::send_raw(channel, FrameOp::import, encode_import("x"));
    const auto said = next_raw(channel);
    const Status why = said ? decode_error(said->payload)
                            : Status(Code::disconnected, Scope::peer, "it said nothing");
    if (why.code() != Code::not_found) return why;
    return channel;
  }
  void expect_others_to_come_in() {
    auto other = test::connect_raw(tcp_.to_string());  // the kernel names no process
    greet_raw(other);
    EXPECT_EQ(answer(other), Code::not_found);
  }

  SocketAddress tcp_;
};

TEST_F(ControlOfProcess, SessionsWithoutAGoodbyeHaveABound) {
  serve({.left_by_process = 3});
  auto stays = test::take(meet());
  for (int i = 0; i < 20; ++i) {
    auto ends = test::take(meet());
    test::send_raw(ends, FrameOp::goodbye, {});
  }
  int left = 0;
  Status refused;
  // The server notices the end of each a little later.
  for (; left < 200 && refused.ok(); ++left) refused = meet().status();
  EXPECT_EQ(refused.code(), Code::no_resource) << refused.to_string();
  EXPECT_NE(refused.what().find("without a goodbye"), std::string::npos) << refused.what();
  EXPECT_GT(left, 3);
  EXPECT_EQ(answer(stays), Code::not_found);
  expect_others_to_come_in();
}

TEST_F(ControlOfProcess, SessionsHaveABound_AndAnEndMakesRoom) {
  serve({.of_process = 2});
  auto first = test::take(meet()), second = test::take(meet());
  const Status refused = meet().status();
  EXPECT_EQ(refused.code(), Code::no_resource) << refused.to_string();
  EXPECT_NE(refused.what().find("has 2 sessions here"), std::string::npos) << refused.what();
  expect_others_to_come_in();
  test::send_raw(first, FrameOp::goodbye, {});
  first = base::FdChannel(base::Fd());
  const auto limit = soon();
  Result<base::FdChannel> next = meet();
  while (!next.ok() && !limit.passed()) next = meet();
  EXPECT_TRUE(next.ok()) << next.status().to_string();
}

/// In what a peer has asked for.
TEST_P(ControlLimits, EndAnswers_WhenTheControlThreadStandsStill) {
  serve({.ending = 100ms});
  auto peer = connect();
  greet_raw(peer);
  quiet_.hold();
  test::send_raw(peer, FrameOp::import, encode_import("x"));
  ASSERT_TRUE(quiet_.wait_until_held());
  for (int i = 0; i < 2; ++i) {
    const Status stands = server_->end(base::Deadline::after(base::Clock::steady(), 1ms));
    EXPECT_EQ(stands.code(), Code::timed_out) << stands.to_string();
  }
  quiet_.let_go();
  Status ended = server_->end(soon());
  const auto limit = soon();
  while (!ended.ok() && !limit.passed()) ended = server_->end(soon());
  EXPECT_EQ(ended.to_string(), "ok");
}

INSTANTIATE_TEST_SUITE_P(By, ControlLimits, ::testing::Values("unix", "tcp"),
                         [](const auto& param) { return std::string(param.param); });

TEST(PeersWords, AreCutAndWriteNothingButThemselves) {
  const Hello hello{
      .engine = "a\nERROR b\x1b[2J", .process = {}, .key_share = {}, .transports = {}};
  EXPECT_EQ(test::take(decode_hello(encode(hello))).engine, "a?ERROR b?[2J");
  const Status said =
      decode_error(encode_error(Status(Code::busy, Scope::peer, std::string(3000, '\r'))));
  EXPECT_EQ(said.what(), "the peer: " + std::string(1024, '?'));
}

}  // namespace control_limits_test
}  // namespace linkspan::control
