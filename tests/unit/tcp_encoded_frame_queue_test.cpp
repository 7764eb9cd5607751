// Tests the encoded frames that wait for a Sender.
#include "transport/tcp/encoded_frame_queue.hpp"

#include <gtest/gtest.h>

#include "tests/support/no_memory.hpp"
#include "transport/tcp/frame.hpp"

namespace linkspan::transport::tcp {
namespace tcp_encoded_frame_queue_test {

EncodedFrames frames(std::size_t bytes, unsigned char value, std::size_t count = 1) {
  return {std::vector<std::byte>(bytes, std::byte{value}), count};
}

TEST(EncodedFrameQueue, ReturnsWholeFramesInTheirOrder) {
  EncodedFrameQueue queue;
  queue.push(frames(3, 1));
  queue.push(frames(2, 2));
  EXPECT_FALSE(queue.is_idle());
  const auto bytes = queue.pop(false);
  ASSERT_EQ(bytes.size(), 5u);
  EXPECT_EQ(bytes[2], std::byte{1});
  EXPECT_EQ(bytes[3], std::byte{2});
  EXPECT_TRUE(queue.pop(false).empty());
}

TEST(EncodedFrameQueue, ReturnsNoMoreThanOneCallSends) {
  EncodedFrameQueue queue;
  for (int i = 0; i < 3; ++i) queue.push(frames(kMaxHead, 1));
  EXPECT_EQ(queue.pop(false).size(), kMaxHead);
  queue.push(frames(1, 2));
  EXPECT_EQ(queue.pop(true).size(), kMaxHead) << "one alone";
}

TEST(EncodedFrameQueue, IsFullOfFrames) {
  EncodedFrameQueue queue;
  queue.push(frames(8, 1, EncodedFrameQueue::kMaxFrames - 1));
  EXPECT_FALSE(queue.is_full());
  queue.push(frames(8, 1));
  EXPECT_TRUE(queue.is_full());
  (void)queue.pop(true);
  EXPECT_FALSE(queue.is_full());
}

TEST(EncodedFrameQueue, CountsNoFrame_ThatItHasNoMemoryFor) {
  EncodedFrameQueue queue;
  test::fail_each_allocation(
      [&] {
        for (int i = 0; i < 40; ++i) queue.push(frames(8, 1));
      },
      [&](bool) {
        while (!queue.pop(true).empty()) {
        }
        queue.push(frames(8, 1, EncodedFrameQueue::kMaxFrames - 1));
        EXPECT_FALSE(queue.is_full());
        (void)queue.pop(true);
      });
}

TEST(EncodedFrameQueue, IsIdleOnlyIfItIsEmpty) {
  EncodedFrameQueue queue;
  EXPECT_TRUE(queue.is_idle());
  queue.push(frames(1, 1));
  queue.set_idle_if_empty(true);
  EXPECT_FALSE(queue.is_idle());
  (void)queue.pop(false);
  queue.set_idle_if_empty(false);
  EXPECT_FALSE(queue.is_idle());
  queue.set_idle_if_empty(true);
  EXPECT_TRUE(queue.is_idle());
}

}  // namespace tcp_encoded_frame_queue_test
}  // namespace linkspan::transport::tcp
