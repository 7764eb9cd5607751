// Tests connections for transports, beside a Session: which Session gets them, and which are
// refused.
#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "net/tcp_socket.hpp"
#include "tests/unit/control_fixture.hpp"

namespace linkspan::control {
namespace control_stream_test {

using namespace std::chrono_literals;
using test::next_raw, test::send_raw;

class ControlDataConnections : public test::ControlFixture {
 protected:
  void meet(bool tcp) {
    serve(tcp);
    client_ = test::take(ControlPlane::open(other_, theirs_, log_));
    session_ = test::take(client_->connect(at_, soon()));
  }

  std::shared_ptr<Session> session_;  // also the client's
};

TEST_F(ControlDataConnections, ComeToBothEndsAndCarryWhatIsSentAtOnce) {
  meet(true);
  for (const char* transport : {"tcp", "another"}) {
    ASSERT_TRUE(client_->open_data_connection(session_, transport).ok());
    auto here = theirs_.next_stream(5s), there = quiet_.next_stream(5s);
    ASSERT_TRUE(here && there);
    EXPECT_EQ(here->transport, transport);
    EXPECT_EQ(there->transport, transport);
    ASSERT_TRUE(here->socket.ok() && there->socket.ok());
    for (const auto& [from, to] : {std::pair(&here->socket->socket, &there->socket->socket),
                                   std::pair(&there->socket->socket, &here->socket->socket)}) {
      ASSERT_TRUE(net::send_all(*from, "bytes", soon()).ok());
      EXPECT_EQ(test::take(net::receive_some(*to, 64, soon())), "bytes");
    }
  }
  EXPECT_FALSE(session_->is_disconnected());
}

TEST_F(ControlDataConnections, ThatFindNoRoomAreTriedAgain) {
  serve(true, {.handshakes = 1});
  client_ = test::take(ControlPlane::open(other_, theirs_, log_));
  session_ = test::take(client_->connect(at_, soon()));
  ASSERT_EQ(quiet_.last()->is_remote(), true);
  const auto slow = connect();  // it has the only place, for a second
  const std::byte first{24};
  ASSERT_EQ(::send(slow.fd(), &first, 1, MSG_NOSIGNAL), 1);
  ASSERT_TRUE(client_->open_data_connection(session_, "tcp").ok());
  const auto made = theirs_.next_stream(10s);
  ASSERT_TRUE(made.has_value());
  EXPECT_TRUE(made->socket.ok()) << made->socket.status().to_string();
}

TEST_F(ControlDataConnections, AreMadeByWhoHasConnectedByTcp) {
  meet(true);
  EXPECT_EQ(server_->open_data_connection(quiet_.last(), "tcp").code(), Code::unsupported);
  client_->close(soon());
  server_->close(soon());
  meet(false);
  EXPECT_EQ(client_->open_data_connection(session_, "tcp").code(), Code::unsupported);
}

TEST_F(ControlDataConnections, OfNoSessionAreRefused) {
  meet(true);
  DataConnectionHello guessed{.transport = "tcp", .number = 1};
  guessed.proof.fill(std::byte{1});
  const DataConnectionHello stolen =
      test::take(session_->authenticator().offer("tcp")).hello;  // another Engine's
  for (const auto& [hello, incarnation] :
       {std::pair(guessed, other_.incarnation), std::pair(stolen, test::kRawIncarnation)}) {
    auto raw = connect();
    send_raw(raw, FrameOp::data_connection, encode(hello), incarnation);
    const auto said = next_raw(raw);
    ASSERT_TRUE(said.has_value());
    EXPECT_EQ(decode_error(said->payload).code(), Code::permission_denied);
    EXPECT_FALSE(next_raw(raw).has_value());
  }
  auto raw = connect();
  send_raw(raw, FrameOp::data_connection, std::as_bytes(std::span("no table")));
  const auto said = next_raw(raw);
  ASSERT_TRUE(said.has_value());
  EXPECT_EQ(decode_error(said->payload).code(), Code::corrupt);
  EXPECT_FALSE(quiet_.next_stream(100ms).has_value());
  EXPECT_FALSE(session_->is_disconnected());
}

TEST_F(ControlDataConnections, AreAsManyAsASessionMayEverHave) {
  constexpr int kMax = 256;
  meet(true);
  for (int i = 0; i <= kMax; ++i) {
    ASSERT_TRUE(client_->open_data_connection(session_, "tcp").ok());
    const auto made = theirs_.next_stream(10s);
    ASSERT_TRUE(made.has_value()) << i;
    ASSERT_EQ(made->socket.ok(), i < kMax) << i << ": " << made->socket.status().to_string();
    if (i == kMax) break;
    ASSERT_TRUE(quiet_.next_stream(10s).has_value()) << i;
  }
  EXPECT_FALSE(session_->is_disconnected());
}

/// One side has lost the first session without the other noticing, so both sessions have the same
/// incarnations.
TEST_F(ControlDataConnections, OfTwoSessionsOfTheSameEnginesComeEachToItsOwn) {
  meet(true);
  const auto old_here = session_, old_there = quiet_.last();
  session_ = test::take(client_->connect(at_, soon()));
  const auto there = quiet_.last();
  ASSERT_NE(there->id(), old_there->id());
  for (int i = 0; i < 2; ++i)
    for (const auto& [ours, theirs] :
         {std::pair(session_, there), std::pair(old_here, old_there)}) {
      ASSERT_TRUE(client_->open_data_connection(ours, "tcp").ok());
      const auto made = theirs_.next_stream(5s), taken = quiet_.next_stream(5s);
      ASSERT_TRUE(made && taken && made->socket.ok() && taken->socket.ok());
      EXPECT_EQ(made->session, ours->id());
      EXPECT_EQ(taken->session, theirs->id());
    }

  // A connection that was requested in time and arrives after the end of its session does not go to
  // the other session.
  const DataConnectionHello late = test::take(old_here->authenticator().offer("tcp")).hello;
  client_->drop(old_here, Status(Code::disconnected, Scope::peer, "lost"));
  const auto limit = soon();
  while (!old_there->is_disconnected() && !limit.passed()) std::this_thread::yield();
  auto raw = connect();
  send_raw(raw, FrameOp::data_connection, encode(late), other_.incarnation);
  const auto said = next_raw(raw);
  ASSERT_TRUE(said.has_value());
  EXPECT_EQ(decode_error(said->payload).code(), Code::permission_denied);
  EXPECT_FALSE(quiet_.next_stream(100ms).has_value());
  EXPECT_FALSE(session_->is_disconnected());
}

TEST_F(ControlDataConnections, ThatCannotBeMadeAreTold) {
  meet(true);
  at_ = test::take(server_->listen(test::take(parse_address("tcp:127.0.0.1:0", {}))));
  const auto limit = soon();
  for (bool told = false; !told && !limit.passed();) {  // the old port closes in a moment
    ASSERT_TRUE(client_->open_data_connection(session_, "tcp").ok());
    const auto made = theirs_.next_stream(5s);
    ASSERT_TRUE(made.has_value());
    told = made->socket.status().code() == Code::unreachable;
  }
  EXPECT_FALSE(limit.passed());
  EXPECT_FALSE(session_->is_disconnected());
}

}  // namespace control_stream_test
}  // namespace linkspan::control
