// Tests TLS over TCP: which peers connect, what each side reports if only one has TLS, and what
// happens to peers that never finish a handshake.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <thread>

#include "control/session_keys.hpp"
#include "net/tcp_socket.hpp"
#include "tests/unit/control_fixture.hpp"

namespace linkspan::control {
namespace control_tls_test {

using namespace std::chrono_literals;
using test::any_raw, test::next_raw, test::send_raw, test::take;

constexpr const char* kSecret = "a secret of the tests";

class ControlTls : public test::ControlFixture {
 protected:
  static void give(Identity& to, const std::string& secret, bool tls) {
    to.secret = secret;
    to.tls = tls ? take(base::TlsContext::create(secret)) : nullptr;
  }
  // Closes the old server first, whose thread may read the secret.
  void serve(const std::string& secret, bool tls, const PeerLimits& limits = {}) {
    if (server_) server_->close(soon());
    give(us_, secret, tls);
    test::ControlFixture::serve(true, limits);
  }
  Result<std::shared_ptr<Session>> meet(const std::string& secret, bool tls, Duration time = 10s) {
    if (client_) client_->close(soon());
    give(other_, secret, tls);
    client_ = take(ControlPlane::open(other_, theirs_, log_));
    return client_->connect(at_, base::Deadline::after(base::Clock::steady(), time));
  }
  /// Connects with a secret of the connection, from an Engine with TLS and another secret.
  Result<std::shared_ptr<Session>> meet_by(const std::string& secret) {
    give(other_, "a secret of its own Engine", true);
    client_ = take(ControlPlane::open(other_, theirs_, log_));
    return client_->connect(at_, soon(), {}, secret);
  }
  /// Connects by hand as a client that has the secret.
  base::FdChannel connect_by_tls() {
    auto channel = connect();
    channel.secure(take(base::TlsEnd::create(take(base::TlsContext::create(kSecret)), channel.fd(),
                                             base::TlsSide::connector)));
    return channel;
  }
};

TEST_F(ControlTls, MeetsAndMakesConnectionsByIt) {
  serve(kSecret, true);
  const auto session = meet(kSecret, true);
  ASSERT_TRUE(session.ok()) << session.status().to_string();
  EXPECT_TRUE(std::ranges::equal((*session)->key(), quiet_.last()->key()));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client_->open_data_connection(*session, "tcp").ok());
    auto here = theirs_.next_stream(5s), there = quiet_.next_stream(5s);
    ASSERT_TRUE(here && there && here->socket.ok() && there->socket.ok());
    EXPECT_FALSE(here->socket->keys || there->socket->keys);
    ASSERT_TRUE(here->socket->tls && there->socket->tls);
    for (const auto& [from, to] : {std::pair(here->socket->tls.get(), there->socket->tls.get()),
                                   std::pair(there->socket->tls.get(), here->socket->tls.get())}) {
      char said[] = "bytes", heard[sizeof said] = {};
      const iovec out{said, sizeof said}, in{heard, sizeof heard};
      EXPECT_EQ(take(from->send(std::span(&out, 1))), sizeof said);
      std::size_t got = 0;
      for (const auto limit = soon(); got == 0 && !limit.passed();)
        got = take(to->receive(std::span(&in, 1)));
      EXPECT_EQ(got, sizeof said);
      EXPECT_STREQ(heard, said);
    }
  }
  EXPECT_FALSE((*session)->is_disconnected());
}

TEST_F(ControlTls, HasAKeyOfTheConnectionsSecret_WhenOneIsGiven) {
  serve(kSecret, true);
  const auto session = meet_by(kSecret);
  ASSERT_TRUE(session.ok()) << session.status().to_string();
  ASSERT_TRUE(client_->open_data_connection(*session, "tcp").ok());
  auto here = theirs_.next_stream(5s), there = quiet_.next_stream(5s);
  ASSERT_TRUE(here && there && here->socket.ok() && there->socket.ok());
  EXPECT_TRUE(here->socket->tls && there->socket->tls);
  EXPECT_FALSE(here->socket->keys || there->socket->keys);
}

TEST_F(ControlTls, NamesTheConnectionsSecret_WhenItIsRefused) {
  serve(kSecret, true);
  const Status why = meet_by("another secret of tests").status();
  EXPECT_EQ(why.code(), Code::permission_denied) << why.to_string();
  for (const char* word : {"another secret than", "; connected with ConnectOptions::secret"})
    EXPECT_NE(why.what().find(word), std::string::npos) << why.what();
  EXPECT_EQ(quiet_.last(), nullptr);
}

TEST_F(ControlTls, IsAskedForByBothOrByNone) {
  const auto refused = [this](const std::string& secret, bool tls, const char* word) {
    const base::Time begin = base::Clock::steady().now();
    const auto session = meet(secret, tls);
    EXPECT_EQ(session.status().code(), Code::permission_denied) << session.status().to_string();
    EXPECT_NE(session.status().what().find(word), std::string::npos) << session.status().what();
    EXPECT_LT(base::Clock::steady().now() - begin, 5s);  // not by a deadline
    EXPECT_EQ(quiet_.last(), nullptr);
    EXPECT_EQ(theirs_.last(), nullptr);
  };
  serve(kSecret, true);
  refused(kSecret, false,
          "the peer: the peer speaks no TLS and this side does: set LINKSPAN_SECURITY=encrypted");
  refused("", false, "LINKSPAN_SECURITY=encrypted");
  refused("another secret of tests", true, "another secret");
  serve(kSecret, false);
  refused(kSecret, true,
          "the peer speaks no TLS and this side does: set LINKSPAN_SECURITY=encrypted");
  serve("", false);
  refused(kSecret, true, "LINKSPAN_SECURITY=encrypted");
}

TEST_F(ControlTls, ASideWithoutItTellsThatThePeerHasIt) {
  serve(kSecret, false);
  auto raw = connect_by_tls();
  ASSERT_TRUE(raw.queue({.op = static_cast<std::uint16_t>(FrameOp::hello)}, {}, {}).ok());
  (void)raw.flush();  // its handshake begins, or has ended: a plain hello may be here already
  for (;;) {
    const auto said = any_raw(raw);
    ASSERT_TRUE(said.has_value());
    EXPECT_TRUE(said->plain);
    if (said->header.op != static_cast<std::uint16_t>(FrameOp::error)) continue;
    const Status why = decode_error(said->payload);
    EXPECT_EQ(why.code(), Code::permission_denied);
    EXPECT_NE(why.what().find("speaks TLS and this side does not"), std::string::npos);
    break;
  }
}

TEST_F(ControlTls, WhereThereIsNoRoomItIsTriedAgain) {
  serve(kSecret, true, {.peers = 0});
  const auto full = meet(kSecret, true, 300ms);
  EXPECT_EQ(full.status().code(), Code::no_resource) << full.status().to_string();
}

TEST_F(ControlTls, IsNotAskedForByUnixSockets) {
  give(us_, kSecret, true);
  test::ControlFixture::serve(false);
  EXPECT_TRUE(meet("", false).ok());
}

/// More than a turn takes, in a few records.
TEST_F(ControlTls, FramesThatCameTogetherAreAllAnswered) {
  serve(kSecret, true);
  auto raw = connect_by_tls();
  const Hello hello{.engine = "raw", .process = {}, .transports = {}, .requires_auth = true};
  const auto ours = encode(hello);
  send_raw(raw, FrameOp::hello, ours);
  const auto theirs = any_raw(raw);
  ASSERT_TRUE(theirs.has_value());
  const auto key = take(session_key(std::as_bytes(std::span(std::string_view(kSecret))),
                                    {ours, test::kRawIncarnation},
                                    {theirs->payload, theirs->header.incarnation}));
  send_raw(raw, FrameOp::proof, encode_proof(take(auth_mac(key, Side::connector))));
  ASSERT_TRUE(any_raw(raw).has_value());
  send_raw(raw, FrameOp::ready, {});
  constexpr std::size_t kFrames = 1000;
  for (std::size_t i = 0; i < kFrames; ++i)
    ASSERT_TRUE(raw.queue({.op = static_cast<std::uint16_t>(FrameOp::import),
                           .id = i,
                           .incarnation = test::kRawIncarnation},
                          encode_import("x"), {})
                    .ok());
  for (std::size_t i = 0; i < kFrames; ++i) {
    const auto said = next_raw(raw);
    ASSERT_TRUE(said.has_value()) << i;
    EXPECT_EQ(said->header.id, i);
  }
}

/// Nothing, part of a record's head, part of a ClientHello, a record that never ends, noise.
TEST_F(ControlTls, WhoNeverFinishesIsClosedByTheDeadline) {
  serve(kSecret, true, {.handshake = 300ms});
  const unsigned char hello[] = {22, 3, 1, 1, 0, 1, 0, 0, 252, 3, 3, 9, 9, 9};
  std::vector<base::FdChannel> slow;
  for (const std::size_t bytes : {0u, 1u, 3u, 5u, 14u}) {
    slow.push_back(connect());
    ASSERT_EQ(::send(slow.back().fd(), hello, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }
  slow.push_back(connect());
  ASSERT_EQ(::send(slow.back().fd(), "GET /", 5, MSG_NOSIGNAL), 5);
  const auto limit = base::Deadline::after(base::Clock::steady(), 5s);
  for (base::FdChannel& each : slow) {
    char some[4096];
    ssize_t got = -1;
    while ((got = ::recv(each.fd(), some, sizeof some, MSG_DONTWAIT)) != 0 && !limit.passed())
      if (got < 0 && errno == ECONNRESET) break;
    EXPECT_FALSE(limit.passed());
  }
  EXPECT_TRUE(meet(kSecret, true).ok());
}

TEST_F(ControlTls, WhoWaitsForAHandshakeDoesNotSpin) {
  serve(kSecret, true, {.handshake = 5s});
  auto mute = connect();
  auto slow = connect();
  ASSERT_EQ(::send(slow.fd(), "\x16\x03", 2, MSG_NOSIGNAL), 2);
  rusage begin{}, end{};
  ::getrusage(RUSAGE_SELF, &begin);
  std::this_thread::sleep_for(500ms);
  ::getrusage(RUSAGE_SELF, &end);
  const auto ms = [](const rusage& use) {
    return (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000 +
           (use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1000;
  };
  EXPECT_LT(ms(end) - ms(begin), 150);
}

}  // namespace control_tls_test
}  // namespace linkspan::control
