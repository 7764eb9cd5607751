// Tests descriptors of other processes that block close(2) or were not requested: the Control
// thread keeps answering.
#include <sys/socket.h>

#include <thread>

#include "base/shared_page.hpp"
#include "control/introspection_socket.hpp"
#include "tests/support/lingering_socket.hpp"
#include "tests/support/raw_message.hpp"
#include "tests/unit/control_fixture.hpp"

namespace linkspan::control::control_fds_test {

using namespace std::chrono_literals;
using test::greet_raw, test::next_raw, test::take;

class ControlFds : public test::ControlFixture {
 protected:
  void SetUp() override {
    ControlFixture::SetUp();
    us_.socket_dir = folder_;
    serve(false);
    peer_.emplace(connect());
    greet_raw(*peer_);
    ASSERT_EQ(answer(*peer_), Code::not_found);
  }
  void TearDown() override {
    // Must take less time than close(2) would block.
    const base::Time begin = base::Clock::steady().now();
    server_->close(soon());
    server_.reset();
    EXPECT_LT(base::Clock::steady().now() - begin, 10s);
    standing_.end();
    ControlFixture::TearDown();
  }
  /// Sends `ahead` without descriptors, then `bytes` and the socket with the first of them, with
  /// `extra` more descriptors before it. The Control thread sees nothing of it until all is sent.
  void pass(const base::FdChannel& by, std::span<const std::byte> bytes, std::size_t extra = 0,
            std::span<const std::byte> ahead = {}) {
    std::vector<base::Fd> fds;
    for (std::size_t i = 0; i < extra; ++i) fds.push_back(take(base::open_pidfd(::getpid())));
    fds.push_back(take(standing_.socket.duplicate()));
    // Meanwhile the Control thread reads nothing: the last one that closes the socket is to be it.
    quiet_.hold();
    test::send_raw(*peer_, FrameOp::import, encode_import("x"));
    ASSERT_TRUE(quiet_.wait_until_held());
    ASSERT_EQ(test::send_message(by.fd(), ahead, {}), static_cast<ssize_t>(ahead.size()));
    ASSERT_EQ(test::send_message(by.fd(), bytes, fds), static_cast<ssize_t>(bytes.size()));
    fds.clear();
    standing_.socket = base::Fd();
    quiet_.let_go();
    EXPECT_TRUE(next_raw(*peer_).has_value());
  }
  /// Checks that an earlier peer and a new one are answered.
  void expect_answers() {
    const base::Time begin = base::Clock::steady().now();
    for (int i = 0; i < 10; ++i) EXPECT_EQ(answer(*peer_), Code::not_found);
    auto next = connect();
    greet_raw(next);
    EXPECT_EQ(answer(next), Code::not_found);
    EXPECT_LT(base::Clock::steady().now() - begin, 1s) << "a close(2) stood still in between";
  }
  static std::vector<std::byte> frame(FrameOp op, std::uint32_t bytes) {
    const auto head = encode(base::FrameHeader{.length = bytes,
                                               .op = static_cast<std::uint16_t>(op),
                                               .id = 1,
                                               .incarnation = test::kRawIncarnation});
    std::vector<std::byte> all(head.begin(), head.end());
    all.resize(all.size() + bytes);
    return all;
  }

  test::LingeringSocket standing_;
  std::optional<base::FdChannel> peer_;
};

TEST_F(ControlFds, WithAHelloThatIsRefusedDoNotHoldItUp) {
  auto hostile = connect();
  pass(hostile, frame(FrameOp::hello, 8));
  EXPECT_TRUE(next_raw(hostile).has_value()) << "told why";
  EXPECT_FALSE(next_raw(hostile).has_value());
  expect_answers();
}

TEST_F(ControlFds, WithAFrameThatWantsNoneDoNotHoldItUp) {
  auto hostile = connect();
  greet_raw(hostile);
  EXPECT_EQ(answer(hostile), Code::not_found);
  pass(hostile, frame(FrameOp::collect, 0));
  EXPECT_EQ(answer(hostile), Code::not_found) << "it stays";
  expect_answers();
}

TEST_F(ControlFds, InTheMidstOfAFrameDoNotHoldItUp) {
  auto hostile = connect();
  const auto bytes = frame(FrameOp::hello, 8);
  ASSERT_EQ(test::send_message(hostile.fd(), std::span(bytes).first(26), {}), 26);
  pass(hostile, std::span(bytes).subspan(26));
  EXPECT_FALSE(next_raw(hostile).has_value());
  expect_answers();
}

TEST_F(ControlFds, MoreThanAFrameHasDoNotHoldItUp) {
  auto hostile = connect();
  pass(hostile, frame(FrameOp::hello, 0), base::kMaxFrameFds);
  EXPECT_FALSE(next_raw(hostile).has_value());
  expect_answers();
}

TEST_F(ControlFds, ThatItNeverReadsDoNotHoldItUp) {
  auto hostile = connect();
  // The first frame is no hello and ends the connection.
  pass(hostile, frame(FrameOp::hello, 8), 0, frame(FrameOp::notify, 0));
  EXPECT_TRUE(next_raw(hostile).has_value());
  expect_answers();
}

TEST_F(ControlFds, OfAPeerThatEndsDoNotHoldItUp) {
  {
    auto hostile = connect();
    greet_raw(hostile);
    EXPECT_EQ(answer(hostile), Code::not_found);
    pass(hostile, frame(FrameOp::goodbye, 0));
  }
  expect_answers();
}

TEST_F(ControlFds, OfAConnectionThatWasNotAcceptedDoNotHoldUpItsEnd) {
  std::vector<base::FdChannel> queued;
  auto hostile = connect();
  pass(hostile, frame(FrameOp::hello, 8));
  server_->send_goodbye();  // ends the listening socket, with or without it
}

TEST_F(ControlFds, AtTheOperatorsSocketDoNotHoldItUp) {
  for (const std::string& each : introspection_sockets(folder_)) {
    if (!each.starts_with(folder_)) continue;
    auto call = IntrospectionCall::connect(each);
    ASSERT_TRUE(call.ok()) << call.status().to_string();
    pass(base::FdChannel(base::Fd(::dup(call->fd()))), frame(FrameOp::hello, 0));
    (void)call->answer(base::Deadline::after(base::Clock::steady(), 10s));
  }
  ASSERT_FALSE(standing_.socket.valid());
  expect_answers();
}

}  // namespace linkspan::control::control_fds_test
