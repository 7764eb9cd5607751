#include "base/frame_queue.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/take.hpp"

namespace linkspan::base {
namespace frame_queue_test {

std::vector<std::byte> bytes(std::size_t count) { return std::vector<std::byte>(count); }

TEST(FrameQueue, ReturnsTheRestOfItsFirstFrame) {
  FrameQueue queue;
  ASSERT_TRUE(queue.push({.op = 7}, bytes(10), {}).ok());
  ASSERT_TRUE(queue.push({.op = 8}, {}, {}).ok());
  EXPECT_EQ(queue.bytes(), 2 * kFrameHeaderBytes + 10);
  ASSERT_EQ(queue.unsent().size(), kFrameHeaderBytes + 10);
  const auto header =
      decode_header(std::span<const std::byte>(queue.unsent()).first<kFrameHeaderBytes>());
  EXPECT_EQ(header, (FrameHeader{.length = 10, .op = 7}));
  queue.advance(kFrameHeaderBytes);
  EXPECT_EQ(queue.unsent().size(), 10U);
  EXPECT_EQ(queue.bytes(), 2 * kFrameHeaderBytes + 10) << "the frame is still allocated";
  queue.advance(10);
  EXPECT_EQ(queue.unsent().size(), kFrameHeaderBytes);
  queue.advance(kFrameHeaderBytes);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.bytes(), 0U);
}

TEST(FrameQueue, ClosesFdsOnceTheFirstByteHasGone) {
  FrameQueue queue;
  Fd fd(::dup(0));
  const int raw = fd.get();
  ASSERT_TRUE(queue.push({}, {}, std::span(&fd, 1)).ok());
  EXPECT_FALSE(fd.valid());
  ASSERT_EQ(queue.fds().size(), 1U);
  EXPECT_EQ(queue.fds()[0].get(), raw);
  queue.advance(1);
  EXPECT_TRUE(queue.fds().empty());
}

TEST(FrameQueue, RefusesMoreThanItsLimits) {
  FrameQueue queue;
  EXPECT_EQ(queue.check(bytes(kMaxPayload + 1), {}).code(), Code::invalid_argument);
  const Fd closed;
  EXPECT_EQ(queue.check({}, std::span(&closed, 1)).code(), Code::invalid_argument);
  while (queue.check(bytes(kMaxPayload), {}).ok())
    ASSERT_TRUE(queue.push({}, bytes(kMaxPayload), {}).ok());
  EXPECT_EQ(queue.check(bytes(kMaxPayload), {}).code(), Code::no_resource);
  EXPECT_LE(queue.bytes(), kMaxQueuedBytes);
  queue.clear();
  EXPECT_TRUE(queue.check(bytes(kMaxPayload), {}).ok());
}

TEST(FrameQueue, AppendsATagOnceItAuthenticates) {
  FrameQueue queue;
  queue.authenticate(MacKey{});
  ASSERT_TRUE(queue.push({}, bytes(5), {}).ok());
  EXPECT_EQ(queue.unsent().size(), kFrameHeaderBytes + 5 + kMacTagBytes);
}

}  // namespace frame_queue_test
}  // namespace linkspan::base
