// Tests a SessionChannel: what a transport sends through it, and whom its calls reach.
#include "engine/peers/session_channel.hpp"

#include "tests/unit/engine_fixture.hpp"

namespace linkspan::engine {
namespace session_channel_test {

using control::FrameOp;
using test::bytes_of, test::must, test::take;

/// Records the calls.
class RecordingControl final : public control::ControlPlane {
 public:
  using Session = std::shared_ptr<control::Session>;  // also the test's

  Result<control::SocketAddress> listen(const control::SocketAddress&) override { return none(); }
  Result<Session> connect(std::span<const control::SocketAddress>, base::Deadline,
                          const std::string&, std::string_view) override {
    return none();
  }
  Status open_data_connection(const Session& session, std::string transport) override {
    calls.push_back("open " + std::to_string(session->id()) + " " + transport);
    return none();
  }
  void drop(const Session& session, const Status& why) override {
    calls.push_back("drop " + std::to_string(session->id()) + " " + name_of(why.code()));
  }
  void stay_awake(Duration) override {}
  void send_goodbye() override {}
  void send_goodbye(std::uint64_t) override {}
  Status end(base::Deadline) override { return {}; }

  static Status none() { return {Code::unsupported, Scope::request, "a test"}; }
  std::vector<std::string> calls;
};

class SessionChannelTest : public ::testing::Test {
 protected:
  test::TestSession session_{6};
  RecordingControl control_;
  std::vector<std::string> notifications_;
  unsigned requests_ = 0;
  SessionChannel channel_{session_.session(), "fake", control_,
                          [this](const control::Session& from,
                                 const std::vector<std::byte>& payload, std::uint64_t after) {
                            notifications_.push_back(std::to_string(from.id()) + " " +
                                                     test::text_of(payload) + " " +
                                                     std::to_string(after));
                          },
                          [this] { ++requests_; }};
};

TEST_F(SessionChannelTest, SendsAMessageInTheNameOfItsTransport) {
  base::Fd fds[] = {take(base::open_pidfd(::getpid()))};
  must(channel_.send(9, bytes_of("hello"), fds));
  const auto frame = session_.next();
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(static_cast<FrameOp>(frame->header.op), FrameOp::for_transport);
  EXPECT_EQ(frame->fds.size(), 1u);
  const auto message = take(control::decode_for_transport(frame->payload));
  EXPECT_EQ(message.transport, "fake");
  EXPECT_EQ(message.op, 9);
  EXPECT_EQ(test::text_of(message.bytes), "hello");
}

TEST_F(SessionChannelTest, ReportsNoResource_WhenTheSocketIsFull) {
  session_.fill();
  EXPECT_EQ(channel_.send(9, bytes_of("hello"), {}).code(), Code::no_resource);
}

TEST_F(SessionChannelTest, ReportsDisconnected_WhenTheSessionIs) {
  session_.session()->fail({Code::corrupt, Scope::peer, "a test"});
  EXPECT_EQ(channel_.send(9, bytes_of("hello"), {}).code(), Code::disconnected);
}

TEST_F(SessionChannelTest, PassesCallsToTheControlPlane) {
  EXPECT_EQ(channel_.open_data_connection().code(), Code::unsupported);
  channel_.fail_peer({Code::corrupt, Scope::peer, "a broken wire"});
  EXPECT_EQ(control_.calls, (std::vector<std::string>{"open 6 fake", "drop 6 corrupt"}));
}

TEST_F(SessionChannelTest, PassesNotificationsAndRequestsOn) {
  channel_.deliver_notification(bytes_of("written"), 3);
  EXPECT_EQ(notifications_, std::vector<std::string>{"6 written 3"});
  EXPECT_EQ(requests_, 0u);
  channel_.request_progress();
  EXPECT_EQ(requests_, 1u);
}

TEST_F(SessionChannelTest, DescribesThePeerOfItsSession) {
  must(session_.session()->start());
  const auto process = channel_.process();
  EXPECT_EQ(process.pid, ::getpid());
  EXPECT_TRUE(process.same_user);
  EXPECT_EQ(process.pidfd, -1) << "no hello has come";
  EXPECT_EQ(channel_.peer_name(), "");
  EXPECT_EQ(channel_.session_key().data(), session_.session()->key().data());
  EXPECT_FALSE(channel_.connects()) << "a peer of this host has no data connections";
}

}  // namespace session_channel_test
}  // namespace linkspan::engine
