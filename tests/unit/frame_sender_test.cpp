// Tests a FrameSender: the order of frames, and what a full socket does to them.
#include "engine/peers/frame_sender.hpp"

#include "tests/unit/engine_fixture.hpp"

namespace linkspan::engine {
namespace frame_sender_test {

using control::FrameOp;
using test::bytes_of, test::must;

class FrameSenderTest : public ::testing::Test {
 protected:
  /// Returns op, id and payload of the next frame; "" if none has come.
  std::string next() {
    const auto frame = session_.next();
    if (!frame) return "";
    return std::to_string(frame->header.op) + " " + std::to_string(frame->header.id) + " " +
           test::text_of(frame->payload);
  }

  test::TestSession session_{1};
  FrameSender frames_{session_.session()};
};

TEST_F(FrameSenderTest, SendsAtOnce_WhenTheSocketHasRoom) {
  must(frames_.send(FrameOp::accept, 5, bytes_of("one")));
  must(frames_.send_or_queue(FrameOp::finished, 6, bytes_of("two")));
  EXPECT_EQ(frames_.unsent(), 0u);
  EXPECT_EQ(next(), "11 5 one");
  EXPECT_EQ(next(), "12 6 two");
  EXPECT_EQ(next(), "");
}

TEST_F(FrameSenderTest, SendsInTheOrderOfTheCalls_WhenTheSocketWasFull) {
  session_.fill();
  EXPECT_EQ(frames_.send(FrameOp::accept, 1, bytes_of("x")).code(), Code::no_resource);
  must(frames_.send_or_queue(FrameOp::accept, 2, bytes_of("two")));
  must(frames_.send_or_queue(FrameOp::accept, 3, bytes_of("three")));
  frames_.flush();
  EXPECT_EQ(frames_.unsent(), 2u) << "there is no room yet";
  session_.drain();
  EXPECT_EQ(frames_.send(FrameOp::accept, 4, bytes_of("x")).code(), Code::no_resource)
      << "it would overtake";
  must(frames_.send_or_queue(FrameOp::accept, 5, bytes_of("five")));
  EXPECT_EQ(next(), "");
  frames_.flush();
  EXPECT_EQ(frames_.unsent(), 0u);
  EXPECT_EQ(next(), "11 2 two");
  EXPECT_EQ(next(), "11 3 three");
  EXPECT_EQ(next(), "11 5 five");
}

TEST_F(FrameSenderTest, ReportsDisconnected_AndQueuesNothing) {
  session_.session()->fail({Code::corrupt, Scope::peer, "a test"});
  EXPECT_EQ(frames_.send_or_queue(FrameOp::accept, 1, {}).code(), Code::disconnected);
  EXPECT_EQ(frames_.unsent(), 0u);
}

TEST_F(FrameSenderTest, DropsTheFramesOfALostPeer) {
  session_.fill();
  must(frames_.send_or_queue(FrameOp::accept, 1, {}));
  frames_.drop_unsent();
  session_.drain();
  frames_.flush();
  EXPECT_EQ(next(), "");
}

TEST_F(FrameSenderTest, ForgetsItsFrames_WhenThePeerIsDisconnectedMeanwhile) {
  session_.fill();
  must(frames_.send_or_queue(FrameOp::accept, 1, {}));
  session_.session()->fail({Code::corrupt, Scope::peer, "a test"});
  frames_.flush();
  EXPECT_EQ(frames_.unsent(), 0u);
}

TEST_F(FrameSenderTest, CountsTheNotificationsThatWereSent) {
  must(frames_.notify(bytes_of("a")));
  must(frames_.notify(bytes_of("b")));
  EXPECT_EQ(frames_.notified(), 2u);
  session_.fill();
  EXPECT_EQ(frames_.notify(bytes_of("c")).code(), Code::no_resource);
  EXPECT_EQ(frames_.notified(), 2u);
  EXPECT_EQ(session_.next_notification(), "a");
  EXPECT_EQ(session_.next_notification(), "b");
}

}  // namespace frame_sender_test
}  // namespace linkspan::engine
