// Tests a peer over TCP: what is known of it, what is not sent to it, and how its end is noticed.
#include "control/session.hpp"

#include <linux/filter.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "tests/unit/control_fixture.hpp"

namespace linkspan::control {
namespace session_test {

using namespace std::chrono_literals;
using test::greet_raw, test::next_raw, test::take;

class RemoteSession : public test::ControlFixture {
 protected:
  void SetUp() override {
    ControlFixture::SetUp();
    serve(true, {.silence = 2s});
  }
  /// Returns a peer of the server that is ready.
  base::FdChannel meet() {
    auto channel = connect();
    greet_raw(channel);
    EXPECT_EQ(answer(channel), Code::not_found);
    return channel;
  }
  /// Makes the host drop and send no packet any more, so it does not report its end either. Returns
  /// false where the kernel keeps filters of sockets from this user.
  static bool vanish(const base::FdChannel& channel) {
    sock_filter drop[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
    const sock_fprog program{.len = 1, .filter = drop};
    if (::setsockopt(channel.fd(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0)
      return true;
    EXPECT_EQ(errno, EPERM);
    return false;
  }
  void expect_vanished() {
    const Status why = quiet_.wait_for_the_end(10s);
    EXPECT_EQ(why.code(), Code::disconnected) << why.to_string();
    EXPECT_NE(why.what().find("not reached"), std::string::npos) << why.to_string();
  }
};

class LocalSession : public test::ControlFixture {
 protected:
  void SetUp() override {
    ControlFixture::SetUp();
    serve(false);
  }
};

TEST_F(RemoteSession, OfAHostThatVanishedInSilenceIsGone) {
  const auto channel = meet();
  if (!vanish(channel)) GTEST_SKIP() << "needs a filter of sockets";
  expect_vanished();
}

TEST_F(RemoteSession, OfAHostThatVanishedWithBytesUnderWayIsGone) {
  const auto channel = meet();
  if (!vanish(channel)) GTEST_SKIP() << "needs a filter of sockets";
  EXPECT_EQ(quiet_.last()->notify(std::vector<std::byte>(1000)).to_string(), "ok");
  expect_vanished();
}

/// The host answers, but has no more room for bytes that its process does not read.
TEST_F(RemoteSession, ThatTakesNoByteIsGone) {
  const auto channel = meet();
  const std::vector<std::byte> large(65536);
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  while (quiet_.last()->notify(large).ok() && !limit.passed()) {
  }
  expect_vanished();
}

TEST_F(RemoteSession, SendsTheRestItselfOnceItsPeerReads) {
  auto channel = meet();
  const std::vector<std::byte> large(65536);
  std::size_t sent = 0, received = 0;
  while (quiet_.last()->notify(large).ok()) ++sent;
  EXPECT_TRUE(quiet_.last()->socket().wants_write());
  while (received < sent && next_raw(channel)) ++received;
  EXPECT_EQ(received, sent);
  EXPECT_FALSE(quiet_.last()->socket().wants_write());
}

TEST_F(RemoteSession, StaysAsLongAsItsHostAnswers) {
  auto channel = meet();
  EXPECT_EQ(quiet_.wait_for_the_end(4s).to_string(), "ok");
  EXPECT_EQ(answer(channel), Code::not_found);
}

TEST_F(RemoteSession, OfAProcessThatEndedIsGoneAtOnce) {
  auto channel = meet();
  channel = base::FdChannel(base::Fd());
  const Status why = quiet_.wait_for_the_end(1s);
  EXPECT_EQ(why.code(), Code::disconnected) << why.to_string();
}

TEST_F(RemoteSession, IsOfNoProcessAndGetsNoFds) {
  const auto channel = meet();
  Session& session = *quiet_.last();
  EXPECT_TRUE(session.is_remote());
  EXPECT_FALSE(session.is_this_process()) << "by TCP everybody is elsewhere";
  EXPECT_FALSE(session.same_user());
  EXPECT_EQ(session.pid(), 0);
  EXPECT_EQ(session.pidfd(), -1);
  EXPECT_EQ(session.incarnation(), test::kRawIncarnation);
  EXPECT_EQ(session.place().find("at 127.0.0.1:"), 0u) << session.place();
  base::Fd fds[] = {take(base::open_pidfd(::getpid()))};
  EXPECT_EQ(session.send(FrameOp::imported, 1, encode_imported({}), fds).code(), Code::unsupported);
  EXPECT_TRUE(fds[0].valid()) << "it is still the caller's";
}

TEST_F(RemoteSession, IsGreetedWithoutAWordOfThisProcess) {
  auto channel = connect();
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  auto frame = channel.receive();
  while (frame.ok() && !*frame && !limit.passed()) frame = channel.receive();
  ASSERT_TRUE(frame.ok() && *frame);
  const Hello hello = take(decode_hello((*frame)->payload));
  EXPECT_EQ(hello.engine, "server");
  EXPECT_EQ(hello.process, base::ProcessIdentity());
  EXPECT_NE(hello.key_share, Hello().key_share);
}

/// The peer sleeps until its doorbell rings, and its socket has no room for that frame now.
TEST_F(LocalSession, RingsTheDoorbellOnceItsSocketHasRoom) {
  auto channel = connect();
  auto ring = take(NotificationRing::create());
  base::Fd fds[] = {take(base::open_pidfd(::getpid())), ring.release_fd()};
  const Hello hello{
      .engine = "odd", .process = base::this_process(), .key_share = {}, .transports = {}};
  test::send_raw(channel, FrameOp::hello, encode(hello), test::kRawIncarnation, fds);
  test::send_raw(channel, FrameOp::ready, {});
  ASSERT_EQ(answer(channel), Code::not_found);
  Session& session = *quiet_.last();
  const std::vector<std::byte> large(65536);
  for (const std::span<const std::byte> payload : {std::span(large), std::span(large).first(0)})
    while (session.send(FrameOp::notify, 0, payload).ok()) {
    }
  ASSERT_TRUE(ring.request_doorbell());
  EXPECT_EQ(session.notify(large).to_string(), "ok");
  for (auto frame = next_raw(channel);; frame = next_raw(channel)) {
    ASSERT_TRUE(frame) << "the doorbell was lost";
    if (static_cast<FrameOp>(frame->header.op) == FrameOp::collect) break;
  }
}

TEST_F(RemoteSession, SaysAndHearsGoodbye) {
  auto first = meet();
  test::send_raw(first, FrameOp::goodbye, {});
  const Status why = quiet_.wait_for_the_end(10s);
  EXPECT_NE(why.what().find("closed this connection"), std::string::npos) << why.to_string();
  auto second = meet();
  server_->send_goodbye();
  const auto said = next_raw(second);
  ASSERT_TRUE(said.has_value());
  EXPECT_EQ(static_cast<FrameOp>(said->header.op), FrameOp::goodbye);
}

}  // namespace session_test
}  // namespace linkspan::control
