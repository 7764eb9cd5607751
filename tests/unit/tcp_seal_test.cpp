// Tests an authenticated connection: bytes with a valid seal land, and no others.
#include "tests/unit/tcp_connection_group_fixture.hpp"

namespace linkspan::transport::tcp {
namespace tcp_seal_test {

base::MacKeys keys() {
  base::MacKeys keys;
  keys.out.fill(std::byte{3});
  keys.in.fill(std::byte{4});
  return keys;
}

class TcpSeals : public TcpConnectionGroup {
 protected:
  TcpSeals() : TcpConnectionGroup({.keys = keys()}) {}

  /// Returns a put of 8 bytes as it goes over the socket.
  Bytes sealed_put(std::uint64_t id, std::uint64_t offset) {
    Head head = put(id, offset, 8);
    head.incarnation = kPeer;
    head.data = 8;
    Bytes frame = encode(head);
    frame.insert(frame.end(), 8, std::byte{1});
    sealer_.update(frame);
    const auto seal = take(sealer_.finish());
    frame.insert(frame.end(), seal.begin(), seal.end());
    return frame;
  }
  /// Returns the next frame that the endpoint sends; checks its seal.
  std::optional<Head> heard() {
    const auto limit = base::Deadline::after(base::Clock::steady(), 5s);
    for (;;) {
      const auto size = head_bytes(heard_);
      if (size.ok() && *size && heard_.size() >= **size) {
        const Head head = take(decode(std::span(heard_).first(**size)));
        const std::size_t whole = **size + head.data;
        if (heard_.size() >= whole + base::kMacTagBytes) {
          opener_.update(std::span(heard_).first(whole));
          EXPECT_TRUE(base::same_secret(take(opener_.finish()),
                                        std::span(heard_).subspan(whole, base::kMacTagBytes)));
          heard_.erase(heard_.begin(),
                       heard_.begin() + static_cast<std::ptrdiff_t>(whole + base::kMacTagBytes));
          endpoint_->progress(ends_);
          return head;
        }
      }
      const auto more = net::receive_some(raw_, 65536, limit);
      EXPECT_NE(more.status().code(), Code::timed_out);
      if (!more.ok()) return std::nullopt;
      const auto* data = reinterpret_cast<const std::byte*>(more->data());
      heard_.insert(heard_.end(), data, data + more->size());
    }
  }
  void expect_ended(std::uint64_t id) {
    const auto head = heard();
    ASSERT_TRUE(head.has_value());
    EXPECT_EQ(head->type, FrameType::ended);
    EXPECT_EQ(head->id, id);
    EXPECT_EQ(head->code, Code::ok);
  }
  /// Checks that the connections are closed and the memory has `expected`.
  void expect_closed(const Bytes& expected) {
    EXPECT_FALSE(heard().has_value());
    endpoint_->progress(ends_);
    EXPECT_EQ(memory_, expected);
  }

  base::FrameAuthenticator sealer_{keys().in}, opener_{keys().out};
};

TEST_F(TcpSeals, LetLandAndAnswer) {
  Bytes expected = memory_;
  std::fill_n(expected.begin() + 3, 8, std::byte{1});
  std::fill_n(expected.begin() + 64, 8, std::byte{1});
  const Bytes first = sealed_put(1, 3), second = sealed_put(2, 64);
  send_bytes(Bytes(first.begin(), first.begin() + 30));  // in any number of pieces
  send_bytes(Bytes(first.begin() + 30, first.end() - 5));
  Bytes rest(first.end() - 5, first.end());
  rest.insert(rest.end(), second.begin(), second.end());
  send_bytes(rest);
  expect_ended(1);
  expect_ended(2);
  EXPECT_EQ(memory_, expected);

  ASSERT_TRUE(post(linkspan::Op::write, 100, 5000).ok());  // more than one frame
  std::uint64_t bytes = 0;
  for (bool last = false; !last;) {
    const auto head = heard();
    ASSERT_TRUE(head.has_value());
    EXPECT_EQ(head->type, FrameType::put);
    bytes += head->data;
    last = head->last;
  }
  EXPECT_EQ(bytes, 5000u);
}

/// Wherever it was changed: header, place, data, seal.
class TcpSealsChanged : public TcpSeals, public ::testing::WithParamInterface<std::size_t> {};

TEST_P(TcpSealsChanged, EndTheConnectionAndLetNothingLand) {
  const Bytes before = memory_;
  Bytes frame = sealed_put(1, 0);
  const std::size_t head = frame.size() - 8 - base::kMacTagBytes;
  const std::size_t at[] = {8, head - 16, head, head + 7, head + 8, frame.size() - 1};
  frame[at[GetParam()]] ^= std::byte{1};
  send_bytes(frame);
  expect_closed(before);
}

INSTANTIATE_TEST_SUITE_P(At, TcpSealsChanged, ::testing::Range<std::size_t>(0, 6));

TEST_F(TcpSeals, OfAFrameThatCameBeforeEndTheConnection) {
  const Bytes frame = sealed_put(1, 0);
  send_bytes(frame);
  expect_ended(1);
  std::fill_n(memory_.begin(), 8, std::byte{9});
  const Bytes before = memory_;
  send_bytes(frame);
  expect_closed(before);
}

TEST_F(TcpSeals, OfAFrameThatComesTooEarlyEndTheConnection) {
  const Bytes before = memory_;
  (void)sealed_put(1, 0);  // left out
  send_bytes(sealed_put(2, 0));
  expect_closed(before);
}

TEST_F(TcpSeals, AreAskedForOfEachFrame) {
  const Bytes before = memory_;
  Bytes frame = sealed_put(1, 0);
  frame.resize(frame.size() - base::kMacTagBytes);
  const Bytes one = frame;
  frame.insert(frame.end(), one.begin(), one.end());
  send_bytes(frame);
  expect_closed(before);
}

}  // namespace tcp_seal_test
}  // namespace linkspan::transport::tcp
