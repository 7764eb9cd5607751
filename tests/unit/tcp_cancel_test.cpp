// Tests the limits of a cancel over TCP: the batch ends, whatever else the peer sends meanwhile.
#include "tests/unit/tcp_connection_group_fixture.hpp"

namespace linkspan::transport::tcp {
namespace tcp_cancel_test {

/// Time is what the test says, for the endpoint's bounds.
class TcpCancels : public TcpConnectionGroup {
 protected:
  static constexpr int kBound = static_cast<int>(
      std::chrono::ceil<std::chrono::seconds>(TcpInflightBatches::kCancelEnds).count());

  TcpCancels() : TcpConnectionGroup({.fake_clock = true}) {}

  /// Lets a second pass in which the peer writes to our region and is answered.
  void pass_a_second_with_traffic() {
    send(put(++theirs_, 0, 8), ones(8));
    auto heard = next();
    while (heard && heard->head.type != FrameType::ended)
      heard = next();    // the last frame of a canceled put
    if (!heard) return;  // it was closed
    EXPECT_EQ(heard->head.id, theirs_);
    for (int i = 0; i < 10; ++i) {
      clock_.advance(100ms);
      endpoint_->progress(ends_);
    }
  }
  /// Returns the seconds until the last batch has ended, kBound and some at most.
  int seconds_until_it_ends() {
    constexpr int kMax = kBound + 4;
    for (int seconds = 0; seconds < kMax; ++seconds) {
      if (ends_.all.contains(cookies_)) return seconds;
      pass_a_second_with_traffic();
      // A failed batch ends when its threads have released it.
      if (clock_.now() - base::Time{} > TcpInflightBatches::kCancelEnds) (void)end();
    }
    return kMax;
  }

 private:
  std::uint64_t theirs_ = 1000;
};

TEST_F(TcpCancels, OfAWriteEndItThoughThePeerSendsOtherThings) {
  must(post(linkspan::Op::write, 0, kMinChunk));
  ASSERT_TRUE(next().has_value());  // its only frame, which is never answered
  endpoint_->cancel(cookies_);
  EXPECT_LE(seconds_until_it_ends(), kBound + 1);
  EXPECT_EQ(end().code(), Code::disconnected) << end().to_string();
  EXPECT_NE(end().what().find("canceled"), std::string::npos) << end().what();
}

TEST_F(TcpCancels, OfAReadEndItThoughThePeerSendsOtherThings) {
  must(post(linkspan::Op::read, 0, kBytes));
  ASSERT_TRUE(next().has_value());
  endpoint_->cancel(cookies_);
  ASSERT_TRUE(next().has_value());  // the cancel
  EXPECT_LE(seconds_until_it_ends(), kBound + 1);
  EXPECT_EQ(end().code(), Code::disconnected) << end().to_string();
}

/// Bytes come and go by the other one. The region is the user's again, too.
TEST_F(TcpCancels, OfAWriteEndItWhenOneOfItsDataConnectionsIsHeldBack) {
  base::Fd held_back = std::move(raw_);
  add_stream();
  must(post(linkspan::Op::write, 0, kBytes));
  endpoint_->cancel(cookies_);
  EXPECT_EQ(transport_.retract(fixed_->region(), false).code(), Code::ok);  // nothing uses this one
  EXPECT_LE(seconds_until_it_ends(), kBound + 1);
  // canceled: the blocked connection had none of its frames.
  EXPECT_TRUE(end().code() == Code::disconnected || end().code() == Code::canceled)
      << end().to_string();
  EXPECT_EQ(transport_.retract(region_->region(), false).code(), Code::ok);
}

TEST_F(TcpCancels, ThatAreAnsweredHarmNothing) {
  must(post(linkspan::Op::write, 0, kMinChunk));
  ASSERT_TRUE(next().has_value());
  endpoint_->cancel(cookies_);
  for (int seconds = 0; seconds < kBound - 1; ++seconds) pass_a_second_with_traffic();
  send({.type = FrameType::ended, .id = cookies_});
  EXPECT_EQ(end().code(), Code::ok);
  for (int seconds = 0; seconds < 2 * kBound; ++seconds) pass_a_second_with_traffic();
  must(post(linkspan::Op::write, 0, 8));
  EXPECT_TRUE(next().has_value());
}

/// The answer may lie in the socket: nothing has looked.
TEST_F(TcpCancels, AreNotMadeOverdueByAProcessThatStoodStill) {
  must(post(linkspan::Op::write, 0, kMinChunk));
  ASSERT_TRUE(next().has_value());
  endpoint_->cancel(cookies_);
  endpoint_->progress(ends_);
  clock_.advance(1h);
  endpoint_->progress(ends_);
  send({.type = FrameType::ended, .id = cookies_});
  EXPECT_EQ(end().code(), Code::ok);
}

}  // namespace tcp_cancel_test
}  // namespace linkspan::transport::tcp
