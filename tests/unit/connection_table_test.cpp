// Tests the connections of the Control thread: how each is answered, what ends it, and that no
// other one notices.
#include "control/connection_table.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/tcp_pair.hpp"
#include "tests/unit/control_fixture.hpp"

namespace linkspan::control {
namespace connection_table_test {

using namespace std::chrono_literals;
using test::greet_raw, test::send_raw;

/// The test is the Control thread, and the other end of each connection.
class ConnectionTableTest : public ::testing::Test {
 protected:
  ConnectionTableTest() = default;
  ConnectionTableTest(const ConnectionTableTest&) = delete;
  ConnectionTableTest& operator=(const ConnectionTableTest&) = delete;
  ~ConnectionTableTest() override {
    if (table_ != nullptr) table_->clear();
  }
  ConnectionTable& open(const PeerLimits& limits = {}) {
    us_.limits = limits;
    return *(table_ = std::make_unique<ConnectionTable>(io_, us_, events_, log_, connects_));
  }
  static std::pair<base::Fd, base::Fd> unix_pair() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
    return {base::Fd(ends[0]), base::Fd(ends[1])};
  }
  /// Adopts one end of a pair. Returns the other one.
  base::FdChannel adopt(std::pair<base::Fd, base::Fd> pair, Duration handshake = 10s,
                        std::shared_ptr<ConnectResult> result = nullptr) {
    table_->adopt(std::move(pair.first), handshake, std::move(result));
    return base::FdChannel(std::move(pair.second));
  }
  /// Adopts one end, greets at the other one and runs the loop until both are ready.
  base::FdChannel meet(std::pair<base::Fd, base::Fd> pair,
                       std::shared_ptr<ConnectResult> result = nullptr) {
    auto channel = adopt(std::move(pair), 10s, std::move(result));
    greet_raw(channel);
    expect_answer(channel);
    return channel;
  }
  /// Runs the event loop until the other end has a frame, and returns it. nullopt: it was closed.
  std::optional<base::Frame> next(base::FdChannel& channel) {
    for (const auto limit = base::Deadline::in(10s); !limit.passed();) {
      auto frame = channel.receive();
      if (!frame.ok()) return std::nullopt;
      const auto op = *frame ? static_cast<FrameOp>((*frame)->header.op) : FrameOp::hello;
      if (op != FrameOp::hello && op != FrameOp::ready) return std::move(**frame);
      if (!*frame) turn();
    }
    ADD_FAILURE() << "neither an answer nor an end";
    return std::nullopt;
  }
  /// Runs the event loop until there is something to do, 10 ms at most.
  void turn() {
    io_.restart();
    io_.run_one_for(10ms);
  }
  template <class Done>
  bool run_until(const Done& done) {
    for (const auto limit = base::Deadline::in(10s); !done() && !limit.passed();) turn();
    return done();
  }
  void expect_answer(base::FdChannel& channel) {
    send_raw(channel, FrameOp::import, encode_import("x"));
    const auto said = next(channel);
    ASSERT_TRUE(said.has_value());
    EXPECT_EQ(decode_error(said->payload).code(), Code::not_found);
  }
  /// Expects an error and then the end.
  void expect_end(base::FdChannel& channel, Code code, const std::string& what) {
    const auto said = next(channel);
    ASSERT_TRUE(said.has_value());
    ASSERT_EQ(static_cast<FrameOp>(said->header.op), FrameOp::error);
    EXPECT_EQ(decode_error(said->payload).code(), code);
    EXPECT_NE(decode_error(said->payload).what().find(what), std::string::npos)
        << decode_error(said->payload).what();
    EXPECT_FALSE(next(channel).has_value());
  }
  /// Returns the answer to a connect(), for which it runs the event loop.
  Result<std::shared_ptr<Session>> answer(ConnectResult& result) {
    EXPECT_TRUE(run_until([&] { return result.decided; }));
    return connects_.await(result, base::Deadline::in(0s), "the peer");
  }

  const base::Log log_{base::Level::off, base::stderr_sink()};
  Identity us_{.engine = "server", .incarnation = 11};
  test::Quiet events_;
  asio::io_context io_;
  PendingConnects connects_;
  std::unique_ptr<ConnectionTable> table_;
};

TEST_F(ConnectionTableTest, ServesEachPeer_WhenItHasAdoptedTheirSockets) {
  open();
  auto local = meet(unix_pair()), remote = meet(test::tcp_pair());
  EXPECT_TRUE(events_.last()->is_remote());
  EXPECT_FALSE(events_.last()->initiated());
  expect_answer(local);
  expect_answer(remote);
}

TEST_F(ConnectionTableTest, DecidesTheConnect_WhenThePeerIsReady) {
  open();
  const auto result = std::make_shared<ConnectResult>();
  const auto channel = meet(unix_pair(), result);
  const auto session = answer(*result);
  ASSERT_TRUE(session.ok()) << session.status().to_string();
  EXPECT_EQ(*session, events_.last());
  EXPECT_TRUE((*session)->initiated());
}

TEST_F(ConnectionTableTest, FailsTheConnect_WhenThePeerIsAnotherOne) {
  open();
  const auto result = std::make_shared<ConnectResult>();
  result->expect.name = "somebody else";
  auto channel = adopt(unix_pair(), 10s, result);
  greet_raw(channel);
  const Status status = answer(*result).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.what().find("somebody else"), std::string::npos) << status.what();
}

TEST_F(ConnectionTableTest, FailsTheConnect_WhenThePeerClosesInTheHandshake) {
  open();
  const auto result = std::make_shared<ConnectResult>();
  (void)adopt(unix_pair(), 10s, result);
  EXPECT_EQ(answer(*result).status().code(), Code::disconnected);
}

TEST_F(ConnectionTableTest, EndsTheHandshakeOfASilentPeer_WhenItsTimeIsOver) {
  open();
  const auto result = std::make_shared<ConnectResult>();
  auto theirs = adopt(test::tcp_pair(), 5ms), ours = adopt(test::tcp_pair(), 5ms, result);
  expect_end(theirs, Code::timed_out, "the handshake took too long");
  expect_end(ours, Code::timed_out, "the handshake took too long");
  EXPECT_EQ(answer(*result).status().what(), "the handshake took too long");
  EXPECT_EQ(events_.last(), nullptr);
}

/// A peer that is ready has no such deadline.
TEST_F(ConnectionTableTest, KeepsAReadyPeer_WhenTheTimeOfItsHandshakeIsOver) {
  open();
  auto late = adopt(test::tcp_pair(), 50ms), early = adopt(test::tcp_pair(), 49ms);
  greet_raw(late);
  expect_answer(late);
  expect_end(early, Code::timed_out, "the handshake took too long");
  run_until([limit = base::Deadline::in(10ms)] { return limit.passed(); });
  expect_answer(late);
}

/// connect() has returned its time-out, so its caller never closes this session.
TEST_F(ConnectionTableTest, DropsTheSession_WhenConnectHasGivenUp) {
  open();
  const auto result = std::make_shared<ConnectResult>();
  EXPECT_EQ(connects_.await(*result, base::Deadline::in(0s), "a").status().code(), Code::timed_out);
  auto channel = adopt(unix_pair(), 10s, result);
  greet_raw(channel);
  expect_end(channel, Code::timed_out, "the handshake took too long");
  EXPECT_FALSE(result->decided);
}

TEST_F(ConnectionTableTest, RejectsAConnection_WhenAllAreTaken) {
  open({.peers = 1});
  auto first = meet(test::tcp_pair());
  const std::string full = "1 connections are open here, which is all that it takes: try again";
  const auto result = std::make_shared<ConnectResult>();
  auto theirs = adopt(test::tcp_pair()), ours = adopt(test::tcp_pair(), 10s, result);
  expect_end(theirs, Code::no_resource, full);
  expect_end(ours, Code::no_resource, full);
  EXPECT_EQ(answer(*result).status().what(), full);
  expect_answer(first);
  const auto session = events_.last();
  first = base::FdChannel(base::Fd());
  EXPECT_TRUE(run_until([&] { return session->is_terminated(); }));
  meet(test::tcp_pair());  // there is room again
}

TEST_F(ConnectionTableTest, EvictsTheOldestSilentHandshake_WhenANewOneComes) {
  open({.handshakes = 2, .handshakes_of_address = 2});
  auto oldest = adopt(test::tcp_pair()), second = adopt(test::tcp_pair());
  auto third = adopt(test::tcp_pair());
  expect_end(oldest, Code::no_resource, "2 handshakes are under way here");
  greet_raw(second);
  greet_raw(third);
  expect_answer(second);
  expect_answer(third);
}

/// This process lives on, so it may still copy: the session counts until it says goodbye.
TEST_F(ConnectionTableTest, KeepsAnEntry_WhenAPeerOfThisHostLeavesWithoutAGoodbye) {
  open({.peers = 2});
  auto rude = meet(unix_pair()), polite = meet(unix_pair());
  const auto left = events_.last();
  rude = base::FdChannel(base::Fd());
  send_raw(polite, FrameOp::goodbye, {});
  polite = base::FdChannel(base::Fd());
  EXPECT_TRUE(run_until([&] { return left->is_terminated(); }));
  const auto newcomer = meet(unix_pair());
  auto refused = adopt(unix_pair());
  expect_end(refused, Code::no_resource, "2 connections are open here");
}

TEST_F(ConnectionTableTest, RefusesAProcess_WhenItHasLeftTooManySessions) {
  open({.left_by_process = 1});
  auto rude = meet(unix_pair());
  const auto left = events_.last();
  rude = base::FdChannel(base::Fd());
  EXPECT_TRUE(run_until([&] { return left->is_disconnected(); }));
  turn();
  auto again = adopt(unix_pair());
  expect_end(again, Code::no_resource, "has left 1 sessions without a goodbye");
}

TEST_F(ConnectionTableTest, ClosesTheLargest_WhenStrangersUseTooMuchMemory) {
  open({.unproven = 10000});
  auto small = adopt(test::tcp_pair()), large = adopt(test::tcp_pair());
  auto met = meet(test::tcp_pair());
  const base::FrameHeader header{.length = 60000, .op = 1, .id = 0, .incarnation = 5};
  const auto bytes = encode(header);
  const auto begin = [&](base::FdChannel& channel, std::size_t length) {
    std::vector<std::byte> some(bytes.begin(), bytes.end());
    some.resize(bytes.size() + length);
    ASSERT_EQ(::send(channel.fd(), some.data(), some.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(some.size()));
  };
  begin(large, 20000);
  expect_end(large, Code::no_resource,
             "bytes are kept here for connections that have not shown who they are, 10000 at most: "
             "try again");
  greet_raw(small);
  expect_answer(small);
  expect_answer(met);
}

TEST_F(ConnectionTableTest, DropsOnlyThePeerThatWasServed_WhenMemoryWasExhausted) {
  ConnectionTable& table = open();
  auto other = meet(test::tcp_pair()), served = meet(test::tcp_pair());
  const auto session = events_.last();
  EXPECT_TRUE(table.drop_broken()) << "no peer is broken";
  send_raw(served, FrameOp::import, encode_import("no memory"));
  EXPECT_TRUE(run_until([&] { return table.drop_broken() && session->is_disconnected(); }));
  expect_end(served, Code::no_resource,
             "this process could not serve the peer, for want of memory");
  expect_answer(other);
}

TEST_F(ConnectionTableTest, RefusesADataConnection_WhenItHasNoSession) {
  open();
  auto stranger = adopt(test::tcp_pair());
  send_raw(stranger, FrameOp::data_connection,
           encode(DataConnectionHello{.transport = "tcp", .number = 1}));
  expect_end(stranger, Code::permission_denied, "a data connection of a session that is none");
  EXPECT_FALSE(events_.next_stream(0s).has_value());
}

TEST_F(ConnectionTableTest, FailsOneSession_WhenItIsAsked) {
  ConnectionTable& table = open();
  auto first = meet(test::tcp_pair());
  const std::uint64_t id = events_.last()->id();
  auto second = meet(test::tcp_pair());
  table.fail(id, {Code::corrupt, Scope::peer, "a test"});
  table.fail(id + 100, {Code::corrupt, Scope::peer, "no such session"});
  expect_end(first, Code::corrupt, "a test");
  expect_answer(second);
}

TEST_F(ConnectionTableTest, SendsTheRest_WhenThePeerReadsAgain) {
  ConnectionTable& table = open();
  auto channel = meet(unix_pair());
  const auto session = events_.last();
  const std::vector<std::byte> large(65536);
  std::size_t sent = 0, received = 0;
  while (session->send(FrameOp::collect, 0, large).ok()) ++sent;
  EXPECT_FALSE(table.flush()) << "the socket is full";
  while (received < sent && next(channel)) ++received;
  EXPECT_EQ(received, sent);
  EXPECT_TRUE(table.flush());
}

TEST_F(ConnectionTableTest, SaysGoodbyeAndAdoptsNoMore_WhenItEnds) {
  ConnectionTable& table = open();
  auto first = meet(unix_pair());
  const std::uint64_t id = events_.last()->id();
  auto second = meet(unix_pair());
  table.send_goodbye(id);
  table.send_goodbye(id + 100);
  const auto said = next(first);
  ASSERT_TRUE(said.has_value());
  EXPECT_EQ(static_cast<FrameOp>(said->header.op), FrameOp::goodbye);
  expect_answer(second);
  table.send_goodbye();
  const auto other = next(second);
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(static_cast<FrameOp>(other->header.op), FrameOp::goodbye);

  const auto result = std::make_shared<ConnectResult>();
  auto late = adopt(unix_pair()), ours = adopt(unix_pair(), 10s, result);
  EXPECT_FALSE(next(late).has_value());
  EXPECT_FALSE(next(ours).has_value());
  EXPECT_EQ(answer(*result).status().what(), PendingConnects::closing().what());
}

TEST_F(ConnectionTableTest, ReportsNothing_WhenItIsDropped) {
  ConnectionTable& table = open();
  auto channel = meet(test::tcp_pair());
  const auto session = events_.last();
  table.drop();
  EXPECT_TRUE(session->is_disconnected());
  EXPECT_FALSE(next(channel).has_value());
  EXPECT_TRUE(events_.wait_for_the_end(0s).ok());
  EXPECT_FALSE(session->is_terminated());
  EXPECT_TRUE(table.flush()) << "nothing is left to send";
}

}  // namespace connection_table_test
}  // namespace linkspan::control
