// Tests how heads are found in received bytes.
#include "transport/tcp/frame_buffer.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace linkspan::transport::tcp {
namespace tcp_frame_buffer_test {

constexpr std::uint64_t kPeer = 77;
using Bytes = std::vector<std::byte>;

Bytes put(std::uint64_t id, std::uint64_t incarnation = kPeer) {
  Bytes frame = encode({.type = FrameType::put,
                        .id = id,
                        .incarnation = incarnation,
                        .last = true,
                        .spans = {{0, 8}},
                        .data = 8});
  frame.insert(frame.end(), 8, std::byte{5});
  return frame;
}

void receive(FrameBuffer& buffer, std::span<const std::byte> bytes) {
  const iovec room = buffer.room(false);
  ASSERT_GE(room.iov_len, bytes.size());
  std::memcpy(room.iov_base, bytes.data(), bytes.size());
  buffer.received(bytes.size());
}

void expect_head(FrameBuffer& buffer, std::uint64_t id) {
  const auto head = buffer.next_head();
  ASSERT_TRUE(head.ok()) << head.status().to_string();
  ASSERT_TRUE(head->has_value());
  EXPECT_EQ((*head)->id, id);
}

TEST(FrameBuffer, FindsHeadsInWhatHasCome) {
  FrameBuffer buffer(kPeer);
  const Bytes first = put(1), second = put(2);
  receive(buffer, std::span(first).first(30));
  const auto none = buffer.next_head();
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
  receive(buffer, std::span(first).subspan(30));
  receive(buffer, second);
  expect_head(buffer, 1);
  ASSERT_EQ(buffer.unparsed().size(), 8 + second.size());
  EXPECT_EQ(buffer.unparsed()[7], std::byte{5});
  buffer.remove(8);
  buffer.end_frame();
  expect_head(buffer, 2);
  EXPECT_EQ(buffer.unparsed().size(), 8u);
}

TEST(FrameBuffer, TakesTheLargestHead_AndLittleAtOnceOfDataThatNeedNotGoThroughIt) {
  FrameBuffer buffer(kPeer);
  Head question{.type = FrameType::get, .id = 3, .incarnation = kPeer};
  question.spans.resize(kMaxSpans, {0, 8});
  const Bytes all = encode(question);
  EXPECT_GE(buffer.room(true).iov_len, all.size());
  for (std::span<const std::byte> left = all; !left.empty();) {
    const std::size_t some = std::min(left.size(), buffer.room(false).iov_len);
    ASSERT_GT(some, 0u);
    ASSERT_LT(some, all.size() / 4);
    const auto none = buffer.next_head();
    ASSERT_TRUE(none.ok() && !none->has_value());
    receive(buffer, left.first(some));
    left = left.subspan(some);
  }
  expect_head(buffer, 3);
}

TEST(FrameBuffer, RefusesAFrameOfAnotherEngine) {
  FrameBuffer buffer(kPeer);
  receive(buffer, put(1, kPeer + 1));
  EXPECT_EQ(buffer.next_head().status().code(), Code::corrupt);
}

TEST(FrameBuffer, ReturnsNoHeadBeforeItsSealWasVerified) {
  base::MacKey key{};
  key[0] = std::byte{3};
  FrameBuffer buffer(kPeer);
  buffer.expect_seals(key);
  base::FrameAuthenticator sealer(key);
  for (const std::uint64_t id : {1u, 2u}) {
    Bytes frame = put(id);
    sealer.update(frame);
    const auto seal = sealer.finish();
    ASSERT_TRUE(seal.ok());
    receive(buffer, frame);
    const auto none = buffer.next_head();
    ASSERT_TRUE(none.ok());
    EXPECT_FALSE(none->has_value());
    receive(buffer, *seal);
    expect_head(buffer, id);
    buffer.remove(8);
    buffer.end_frame();
    EXPECT_TRUE(buffer.unparsed().empty());
  }
  receive(buffer, put(3));
  receive(buffer, base::MacTag{});
  EXPECT_EQ(buffer.next_head().status().code(), Code::corrupt);
}

}  // namespace tcp_frame_buffer_test
}  // namespace linkspan::transport::tcp
