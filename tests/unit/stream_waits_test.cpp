// Tests StreamWaits: when transfers that wait for a stream are asked, and in which order.
#include "engine/transfers/stream_waits.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <new>

namespace linkspan::engine {
namespace stream_waits_test {

using namespace std::chrono_literals;

class StreamWaitsTest : public ::testing::Test {
 protected:
  using Transfer = std::shared_ptr<TransferState>;  // also the StreamWaits'

  Transfer add(std::uint64_t stream) {
    auto transfer = std::make_shared<TransferState>();
    transfer->streams.after.key = stream;
    waits_.add(transfer, at_);
    return transfer;
  }
  Transfer add_message(std::uint64_t stream, bool sends) {
    auto transfer = std::make_shared<TransferState>();
    transfer->streams.after.key = stream;
    transfer->message = std::make_unique<MessageState>();
    transfer->message->sends = sends;
    transfer->message->stage = MessageState::Stage::waiting_on_stream;
    waits_.add(transfer, at_);
    return transfer;
  }
  /// Polls at a time at which it must, and returns the transfers that were asked.
  std::vector<Transfer> poll(const std::function<bool(const Transfer&)>& resume) {
    at_ = std::max(at_, waits_.next_poll());
    return poll_now(resume);
  }
  std::vector<Transfer> poll_now(const std::function<bool(const Transfer&)>& resume) {
    std::vector<Transfer> asked;
    waits_.poll(at_, [&](const Transfer& transfer) {
      asked.push_back(transfer);
      return resume(transfer);
    });
    return asked;
  }
  static bool stays(const Transfer&) { return false; }
  static bool leaves(const Transfer&) { return true; }

  StreamWaits waits_;
  base::Time at_{1h};
};

TEST_F(StreamWaitsTest, KeepsATransfer_UntilItsStreamHasReachedTheMark) {
  EXPECT_TRUE(waits_.empty());
  const auto transfer = add(1);
  EXPECT_EQ(poll(stays), std::vector{transfer});
  EXPECT_TRUE(waits_.contains(*transfer));
  EXPECT_EQ(poll(leaves), std::vector{transfer});
  EXPECT_FALSE(waits_.contains(*transfer));
  EXPECT_TRUE(waits_.empty());
  EXPECT_TRUE(poll(leaves).empty());
}

TEST_F(StreamWaitsTest, PollsEverMoreSeldom_TheLongerAStreamStandsStill) {
  add(1);
  EXPECT_EQ(waits_.next_poll(), at_) << "the first time at once";
  (void)poll(stays);
  EXPECT_EQ(waits_.next_poll(), at_ + 5us);
  EXPECT_TRUE(poll_now(stays).empty()) << "it is not time";
  at_ += 1600us;
  (void)poll(stays);
  EXPECT_EQ(waits_.next_poll(), at_ + 100us);
  at_ += 10s;
  (void)poll(stays);
  EXPECT_EQ(waits_.next_poll(), at_ + 1ms) << "no longer than this";
}

TEST_F(StreamWaitsTest, PollsAtOnce_WhenATransferWasStopped) {
  const auto transfer = add(1);
  (void)poll(stays);
  waits_.poll_soon();
  EXPECT_EQ(poll_now(leaves), std::vector{transfer});
}

TEST_F(StreamWaitsTest, AsksEachTransfer_WhateverStreamsStandStill) {
  const auto one = add(1), two = add(2), three = add(1);
  EXPECT_EQ(poll([&](const Transfer& each) { return each == three; }),
            (std::vector{one, two, three}));
  EXPECT_EQ(poll(leaves), (std::vector{one, two}));
}

TEST_F(StreamWaitsTest, KeepsMessagesAfterOneStreamInOrder_WhenTheFirstStillWaits) {
  const auto first = add_message(1, true), later = add_message(1, true);
  const auto receive = add_message(1, false), elsewhere = add_message(2, true);
  EXPECT_EQ(poll([&](const Transfer& each) { return each != first; }),
            (std::vector{first, receive, elsewhere}))
      << "another stream or direction has an order of its own";
  EXPECT_TRUE(waits_.contains(*later));
  EXPECT_EQ(poll(leaves), (std::vector{first, later}));
}

TEST_F(StreamWaitsTest, AsksAStoppedMessage_ThoughAnEarlierOneWaits) {
  const auto first = add_message(1, true), stopped = add_message(1, true);
  stopped->message->stage = MessageState::Stage::over;
  EXPECT_EQ(poll([&](const Transfer& each) { return each == stopped; }),
            (std::vector{first, stopped}));
  EXPECT_FALSE(waits_.contains(*stopped));
}

TEST_F(StreamWaitsTest, KeepsATransfer_ThatHadNoMemory) {
  const auto one = add_message(1, true), two = add_message(1, true), three = add(3);
  EXPECT_EQ(poll([&](const Transfer& each) -> bool {
              if (each == one) throw std::bad_alloc();
              return true;
            }),
            (std::vector{one, three}));
  EXPECT_TRUE(waits_.contains(*one));
  EXPECT_TRUE(waits_.contains(*two)) << "it would overtake";
  EXPECT_EQ(poll(leaves), (std::vector{one, two}));
}

TEST_F(StreamWaitsTest, ListsAllThatWait) {
  const auto one = add(1), two = add(2);
  std::vector<Transfer> all;
  waits_.for_each([&](const Transfer& each) { all.push_back(each); });
  EXPECT_EQ(all, (std::vector{one, two}));
}

}  // namespace stream_waits_test
}  // namespace linkspan::engine
