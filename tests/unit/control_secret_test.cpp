// Tests a secret over TCP: which peers it admits, and what happens to frames that a process without
// it has sealed.
#include <gtest/gtest.h>

#include <cstring>

#include "control/session_keys.hpp"
#include "net/tcp_socket.hpp"
#include "tests/unit/control_fixture.hpp"

namespace linkspan::control {
namespace control_secret_test {

using namespace std::chrono_literals;
using test::next_raw, test::send_raw, test::take;

constexpr const char* kSecret = "a secret of the tests";

class ControlSecret : public test::ControlFixture {
 protected:
  // Closes the old server first, whose thread may read the secret.
  void serve(const std::string& secret) {
    if (server_) server_->close(soon());
    us_.secret = secret;
    test::ControlFixture::serve(true);
  }
  Result<std::shared_ptr<Session>> meet(const std::string& secret) {
    if (client_) client_->close(soon());
    other_.secret = secret;
    client_ = take(ControlPlane::open(other_, theirs_, log_));
    return client_->connect(at_, soon());
  }
  /// Connects with a secret of the connection, from an Engine with the secret `own`.
  Result<std::shared_ptr<Session>> meet_by(const std::string& secret, const std::string& own) {
    if (client_) client_->close(soon());
    other_.secret = own;
    client_ = take(ControlPlane::open(other_, theirs_, log_));
    return client_->connect(at_, soon(), {}, secret);
  }
};

TEST_F(ControlSecret, LetsInWhoHasTheSame) {
  serve(kSecret);
  const auto session = meet(kSecret);
  ASSERT_TRUE(session.ok()) << session.status().to_string();
  EXPECT_TRUE(std::ranges::equal((*session)->key(), quiet_.last()->key()));
  ASSERT_TRUE(client_->open_data_connection(*session, "tcp").ok());
  auto here = theirs_.next_stream(5s), there = quiet_.next_stream(5s);
  ASSERT_TRUE(here && there && here->socket.ok() && there->socket.ok());
  ASSERT_TRUE(here->socket->keys && there->socket->keys);
  EXPECT_EQ(here->socket->keys->out, there->socket->keys->in);
  EXPECT_EQ(here->socket->keys->in, there->socket->keys->out);
  EXPECT_NE(here->socket->keys->in, here->socket->keys->out);
}

TEST_F(ControlSecret, KeepsOutWhoHasAnotherOrNone) {
  const auto refused = [this](const std::string& theirs, const char* word) {
    const auto session = meet(theirs);
    EXPECT_EQ(session.status().code(), Code::permission_denied) << session.status().to_string();
    EXPECT_NE(session.status().what().find(word), std::string::npos) << session.status().what();
    EXPECT_EQ(quiet_.last(), nullptr);
    EXPECT_EQ(theirs_.last(), nullptr);
  };
  serve(kSecret);
  refused("another secret of tests", "another secret");
  refused("", "LINKSPAN_SECRET_FILE");
  serve("");
  refused(kSecret, "LINKSPAN_SECRET_FILE");
}

TEST_F(ControlSecret, IsNotAskedForByUnixSockets) {
  us_.secret = kSecret;
  test::ControlFixture::serve(false);
  EXPECT_TRUE(meet("").ok());
}

TEST_F(ControlSecret, IsThatOfTheConnection_WhenOneIsGiven) {
  serve(kSecret);
  for (const char* own : {"", kSecret, "another secret of tests"}) {
    const auto session = meet_by(kSecret, own);
    ASSERT_TRUE(session.ok()) << own << ": " << session.status().to_string();
    EXPECT_TRUE(std::ranges::equal((*session)->key(), quiet_.last()->key()));
    ASSERT_TRUE(client_->open_data_connection(*session, "tcp").ok());
    auto here = theirs_.next_stream(5s), there = quiet_.next_stream(5s);
    ASSERT_TRUE(here && there && here->socket.ok() && there->socket.ok());
    ASSERT_TRUE(here->socket->keys && there->socket->keys);
    EXPECT_EQ(here->socket->keys->out, there->socket->keys->in);
  }
}

TEST_F(ControlSecret, CountsForOneConnectionAlone) {
  serve(kSecret);
  ASSERT_TRUE(meet_by(kSecret, "another secret of tests").ok());
  EXPECT_EQ(client_->connect(at_, soon()).status().code(), Code::permission_denied);
  EXPECT_TRUE(client_->connect(at_, soon(), {}, kSecret).ok());
}

TEST_F(ControlSecret, IsNamedButNotShown_WhenItIsRefused) {
  constexpr const char* kWrong = "another secret of tests";
  const auto refused = [](const Result<std::shared_ptr<Session>>& session, const char* why,
                          const char* which) {
    const Status status = session.status();
    EXPECT_EQ(status.code(), Code::permission_denied) << status.to_string();
    for (const char* word : {why, which})
      EXPECT_NE(status.what().find(word), std::string::npos) << status.what();
    for (const char* secret : {kSecret, kWrong})
      EXPECT_EQ(status.what().find(secret), std::string::npos) << status.what();
  };
  serve(kSecret);
  refused(meet_by(kWrong, kSecret), "another secret than", "; connected with ConnectOptions::sec");
  refused(meet(kWrong), "another secret than", "; connected with the Engine's secret");
  refused(meet(""), "this side has none", "or connect with ConnectOptions::secret");
  serve("");
  refused(meet_by(kSecret, ""), "the peer has no secret", "; connected with ConnectOptions::sec");
}

TEST_F(ControlSecret, OfAConnectionIsForgotten_OnceItsKeyIsDerived) {
  struct Nobody final : SessionWriter {
    void write_when_ready(std::uint64_t) override {}
  };
  static Nobody nobody;  // outlives theirs_, which keeps the Session
  serve(kSecret);
  auto bytes = base::copy_secret(kSecret);
  EXPECT_EQ(*bytes, kSecret);
  const std::weak_ptr<const std::string> secret = bytes;
  auto channel = connect();
  const auto session = std::make_shared<Session>(
      1, true, channel.release_socket(), other_, theirs_, nobody, log_,
      ExpectedPeer{.secret = ConnectionSecret{.bytes = std::move(bytes), .tls = nullptr}});
  ASSERT_TRUE(session->start().ok());
  EXPECT_FALSE(secret.expired());
  for (const auto limit = soon(); !session->is_established() && !limit.passed();)
    session->on_readable();
  EXPECT_TRUE(session->is_established()) << session->failure().to_string();
  EXPECT_TRUE(secret.expired());
  session->drop();
}

TEST_F(ControlSecret, OfAConnectionIsIgnoredByUnixSockets) {
  us_.secret = kSecret;
  test::ControlFixture::serve(false);
  EXPECT_TRUE(meet_by("another secret of tests", "").ok());
}

/// A client by hand that knows the secret, and breaks one rule in each test.
class SealedBytes : public ControlSecret {
 protected:
  SealedBytes() { hello_.requires_auth = true; }
  void SetUp() override {
    ControlSecret::SetUp();
    serve(kSecret);
    raw_ = connect();
  }
  /// Sends hello and the proof for the server's hello.
  base::MacKey greet(std::string_view secret = kSecret) {
    const auto ours = encode(hello_);
    send_raw(raw_, FrameOp::hello, ours);
    const auto theirs = next_of(FrameOp::hello);
    key_ = take(session_key(std::as_bytes(std::span(secret)), {ours, test::kRawIncarnation},
                            {theirs.payload, theirs.header.incarnation}));
    return take(auth_mac(key_, Side::connector));
  }
  void prove() {
    send_raw(raw_, FrameOp::proof, encode_proof(greet()));
    const auto answer = next_of(FrameOp::proof);
    EXPECT_EQ(take(decode_proof(answer.payload)), take(auth_mac(key_, Side::acceptor)));
    const auto keys = take(mac_keys_of(key_, Side::connector));
    raw_.authenticate_sent(keys.out);
    raw_.authenticate_received(keys.in);
    send_raw(raw_, FrameOp::ready, {});
    (void)next_of(FrameOp::ready);
  }
  base::Frame next_of(FrameOp op) {
    auto frame = test::any_raw(raw_);
    EXPECT_TRUE(frame && frame->header.op == static_cast<std::uint16_t>(op));
    return frame ? *std::move(frame) : base::Frame();
  }
  /// Returns a frame of ours as it goes over the socket.
  std::vector<std::byte> sealed_frame(base::FrameAuthenticator& sealer) const {
    const auto header = base::encode(
        {.op = static_cast<std::uint16_t>(FrameOp::collect), .incarnation = test::kRawIncarnation});
    std::vector<std::byte> frame(header.begin(), header.end());
    sealer.update(frame);
    const auto seal = take(sealer.finish());
    frame.insert(frame.end(), seal.begin(), seal.end());
    return frame;
  }
  void send_bytes(const std::vector<std::byte>& bytes) {
    ASSERT_EQ(::send(raw_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void expect_dropped(Code code) { EXPECT_EQ(quiet_.wait_for_the_end(10s).code(), code); }
  void expect_refused() {
    const auto said = next_raw(raw_);
    ASSERT_TRUE(said.has_value());
    EXPECT_EQ(said->header.op, static_cast<std::uint16_t>(FrameOp::error));
    EXPECT_EQ(quiet_.last(), nullptr);
  }

  Hello hello_{.engine = "raw", .process = {}, .transports = {}};
  base::FdChannel raw_{base::Fd()};
  base::MacKey key_{};
};

TEST_F(SealedBytes, AreHeardAsLongAsTheyAreInOrder) {
  prove();
  send_raw(raw_, FrameOp::import, encode_import("x"));
  EXPECT_EQ(next_of(FrameOp::error).header.op, static_cast<std::uint16_t>(FrameOp::error));
  EXPECT_FALSE(quiet_.last()->is_disconnected());
}

TEST_F(SealedBytes, WithAByteChangedEndTheirPeer) {
  for (const std::size_t at : {std::size_t{8}, base::kFrameHeaderBytes + 3}) {  // id, seal
    raw_ = connect();
    prove();
    base::FrameAuthenticator sealer(take(mac_keys_of(key_, Side::connector)).out);
    (void)sealed_frame(sealer);  // in the place of the ready that was said
    auto frame = sealed_frame(sealer);
    frame[at] ^= std::byte{1};
    send_bytes(frame);
    expect_dropped(Code::corrupt);
  }
}

TEST_F(SealedBytes, ThatCameBeforeEndTheirPeer) {
  prove();
  base::FrameAuthenticator sealer(take(mac_keys_of(key_, Side::connector)).out);
  (void)sealed_frame(sealer);
  const auto frame = sealed_frame(sealer);
  send_bytes(frame);
  send_bytes(frame);
  expect_dropped(Code::corrupt);
}

TEST_F(SealedBytes, WithoutASealEndTheirPeer) {
  prove();
  const auto header = base::encode(
      {.op = static_cast<std::uint16_t>(FrameOp::collect), .incarnation = test::kRawIncarnation});
  std::vector<std::byte> frame(header.begin(), header.end());
  frame.insert(frame.end(), header.begin(), header.end());
  send_bytes(frame);
  expect_dropped(Code::corrupt);
}

TEST_F(SealedBytes, OfAnEarlierHandshakeAreRefused) {
  const auto proof = greet();  // of this connection, whose words are those of the next one
  raw_ = connect();
  send_raw(raw_, FrameOp::hello, encode(hello_));
  (void)next_of(FrameOp::hello);
  send_raw(raw_, FrameOp::proof, encode_proof(proof));
  expect_refused();
}

TEST_F(SealedBytes, OfWhoSaysOurOwnProofAreRefused) {
  (void)greet();
  send_raw(raw_, FrameOp::proof, encode_proof(take(auth_mac(key_, Side::acceptor))));
  expect_refused();
}

TEST_F(SealedBytes, WithoutAProofAreRefused) {
  (void)greet();
  send_raw(raw_, FrameOp::ready, {});
  expect_refused();
}

TEST_F(SealedBytes, OfAConnectionThatWasMadeBeforeAreRefused) {
  prove();
  DataConnectionHello hello{.transport = "tcp", .number = 1};
  const auto key = take(data_connection_key(key_, "tcp", 1));
  hello.proof = take(auth_mac(key, Side::connector));
  const auto answer_to = [&](const DataConnectionHello& words) {
    auto data_connection = connect();
    send_raw(data_connection, FrameOp::data_connection, encode(words));
    (void)test::any_raw(data_connection);  // hello, which every connection gets
    const auto said = test::any_raw(data_connection);
    return said ? static_cast<FrameOp>(said->header.op) : FrameOp::goodbye;
  };
  DataConnectionHello wrong = hello;
  wrong.number = 2;
  EXPECT_EQ(answer_to(wrong), FrameOp::error);
  wrong = hello;
  wrong.transport = "another";
  EXPECT_EQ(answer_to(wrong), FrameOp::error);
  EXPECT_FALSE(quiet_.next_stream(0ms).has_value());
  EXPECT_EQ(answer_to(hello), FrameOp::ready);
  ASSERT_TRUE(quiet_.next_stream(5s).has_value());
  EXPECT_EQ(answer_to(hello), FrameOp::error);
  EXPECT_FALSE(quiet_.next_stream(0ms).has_value());
  EXPECT_FALSE(quiet_.last()->is_disconnected());
}

}  // namespace control_secret_test
}  // namespace linkspan::control
