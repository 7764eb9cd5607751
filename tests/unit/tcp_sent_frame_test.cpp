// Tests how a frame is laid out for the socket.
#include "transport/tcp/sent_frame.hpp"

#include <gtest/gtest.h>

#include <array>

namespace linkspan::transport::tcp {
namespace tcp_sent_frame_test {

using Bytes = std::vector<std::byte>;

/// A put of two extents, after a queued frame and before an answer.
class SentFrameTest : public ::testing::Test {
 protected:
  SentFrameTest() {
    memory_.fill(std::byte{7});
    frame_.head = Bytes(5, std::byte{1});
    frame_.trailing = Bytes(3, std::byte{2});
    frame_.chunk.emplace();
    Chunk& chunk = *frame_.chunk;
    for (const std::size_t at : {0u, 32u})
      chunk.extents.push_back({reinterpret_cast<std::uintptr_t>(&memory_[at]), at, 8});
    chunk.bytes = 16;
    chunk.head = {
        .type = FrameType::put, .id = 1, .last = true, .spans = {{0, 8}, {32, 8}}, .data = 16};
    head_bytes_ = encode(chunk.head).size();
  }
  Bytes bytes() {
    Bytes all;
    for (const iovec& part : frame_.iovecs.left()) {
      const auto* from = static_cast<const std::byte*>(part.iov_base);
      all.insert(all.end(), from, from + part.iov_len);
    }
    return all;
  }
  /// Expects the queued frame, the head, 16 bytes of `value` and the answer.
  void expect_data(std::byte value) {
    const Bytes all = bytes();
    ASSERT_EQ(all.size(), 5 + head_bytes_ + 16 + 3);
    EXPECT_EQ(all[4], std::byte{1});
    for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(all[5 + head_bytes_ + i], value);
    EXPECT_EQ(all.back(), std::byte{2});
  }

  std::array<std::byte, 64> memory_{};
  Bytes copy_ = Bytes(16, std::byte{9});
  SentFrame frame_;
  std::size_t head_bytes_ = 0;
};

TEST_F(SentFrameTest, TakesItsDataFromItsPlace) {
  frame_.lay_out(copy_);
  expect_data(std::byte{7});
}

TEST_F(SentFrameTest, TakesItsDataFromThePrivateCopy) {
  frame_.copied = true;
  frame_.lay_out(copy_);
  expect_data(std::byte{9});
}

TEST_F(SentFrameTest, HasZerosAndNoNotification_WhenItsMemoryCannotBeRead) {
  frame_.status = Status(Code::unreachable, Scope::request, "freed");
  frame_.chunk->head.notification = Bytes(4);
  frame_.lay_out(copy_);
  expect_data(std::byte{0});
}

TEST_F(SentFrameTest, EndsWithZerosAndItsAnswer_WhenItsMemoryIsLostHalfWay) {
  frame_.lay_out(copy_);
  (void)frame_.iovecs.advance(5 + head_bytes_ + 10);
  EXPECT_TRUE(frame_.zero_rest());
  EXPECT_EQ(frame_.status.code(), Code::unreachable);
  EXPECT_EQ(bytes(), (Bytes{std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0},
                            std::byte{0}, std::byte{2}, std::byte{2}, std::byte{2}}));
  EXPECT_FALSE(frame_.zero_rest()) << "once";
}

TEST_F(SentFrameTest, HasASealOfAllOfIt) {
  const base::MacKey key{};
  base::FrameAuthenticator sealer(key), verifier(key);
  frame_.lay_out(copy_);
  verifier.update(bytes());
  ASSERT_TRUE(frame_.seal_with(sealer).ok());
  const auto expected = verifier.finish();
  ASSERT_TRUE(expected.ok());
  const Bytes all = bytes();
  EXPECT_TRUE(base::same_secret(std::span(all).last(base::kMacTagBytes), *expected));
}

}  // namespace tcp_sent_frame_test
}  // namespace linkspan::transport::tcp
