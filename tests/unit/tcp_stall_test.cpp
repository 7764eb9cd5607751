// Tests transfers that a peer begins on a region of ours over TCP and does not end: it blocks the
// region no longer than the limits of a ConnectionGroup allow, and later bytes land nowhere.
#include "tests/unit/tcp_connection_group_fixture.hpp"

namespace linkspan::transport::tcp {
namespace tcp_stall_test {

/// Time is what the test says, for the endpoint's bounds.
class TcpStalls : public TcpConnectionGroup {
 protected:
  TcpStalls() : TcpConnectionGroup({.fake_clock = true}) {}

  void passes(Duration time) {
    for (Duration step = 0ns; step <= time; step += 500ms) {
      clock_.advance(500ms);
      endpoint_->progress(ends_);
    }
  }
  /// Retracts until it is not busy, because data connections release memory a little later than
  /// requested.
  Code retracted(const memory::Region& region, bool at_once) {
    const auto limit = base::Deadline::after(base::Clock::steady(), 5s);
    Code code = transport_.retract(region, at_once).code();
    for (; code == Code::busy && !limit.passed(); code = transport_.retract(region, at_once).code())
      endpoint_->progress(ends_);
    return code;
  }
  Code retract() { return transport_.retract(region_->region(), false).code(); }
  /// Waits until all that was sent before has arrived.
  void comes(std::uint64_t id) {
    Head head = put(id, 0, 1);
    head.serial = fixed_key_.id.serial;
    send(head, ones(1));
    const auto heard = next();
    ASSERT_TRUE(heard.has_value());
    EXPECT_EQ(heard->head.id, id);
  }
  /// Sends the first of two frames of 8 bytes.
  void begin(std::uint64_t id) {
    send(put(id, 0, 8, false), ones(8));
    comes(id + 1000);
    EXPECT_EQ(memory_[7], std::byte{1});
  }
  void finish(std::uint64_t id) {
    Head last = put(id, 8, 8);
    last.position = 8;
    send(last, ones(8));
  }
};

TEST_F(TcpStalls, APutWithoutProgressEndsByItself) {
  begin(1);
  passes(ServedTransfers::kMaxStall - 1s);
  EXPECT_EQ(endpoint_->served().size(), 1u);
  passes(2s);
  EXPECT_TRUE(endpoint_->served().empty());
  EXPECT_EQ(retract(), Code::ok);
  finish(1);
  expect_end(1, Code::timed_out);
  EXPECT_EQ(memory_[8], std::byte{8 * 7}) << "a late byte";
}

TEST_F(TcpStalls, APutIsListedWithWhatItHasMoved) {
  begin(1);
  passes(7s);
  const auto served = endpoint_->served();
  ASSERT_EQ(served.size(), 1u);
  EXPECT_EQ(served[0].serial, key_.id.serial);
  EXPECT_EQ(served[0].op, linkspan::Op::write);
  EXPECT_EQ(served[0].bytes, 8u);
  EXPECT_GE(served[0].still, 6s);
  EXPECT_LE(served[0].still, 8s);
}

TEST_F(TcpStalls, APutOfADeregisteredRegionEndsSoonerWithoutProgress) {
  begin(1);
  passes(1s);
  EXPECT_EQ(retract(), Code::busy);
  passes(ServedTransfers::kMaxStallRetracted - 2s);
  EXPECT_EQ(retract(), Code::busy);
  passes(3s);
  EXPECT_EQ(retract(), Code::ok);
  finish(1);
  expect_end(1, Code::unreachable);
  EXPECT_EQ(memory_[8], std::byte{8 * 7});
}

TEST_F(TcpStalls, APutThatGoesOnBesideADeregisterComesToItsEnd) {
  begin(1);
  EXPECT_EQ(retract(), Code::busy);
  for (std::uint64_t at = 8; at < 24; at += 8) {
    passes(ServedTransfers::kMaxStallRetracted - 2s);
    EXPECT_EQ(retract(), Code::busy);
    Head more = put(1, at, 8, at == 16);
    more.position = at;
    send(more, ones(8));
    if (at != 16) comes(at + 2000);
  }
  expect_end(1, Code::ok);
  EXPECT_EQ(memory_[23], std::byte{1});
  EXPECT_EQ(retract(), Code::ok);
}

/// A byte from time to time is progress, but not without limit.
TEST_F(TcpStalls, APutOfADeregisteredRegionEndsHoweverItGoesOn) {
  begin(1);
  EXPECT_EQ(retract(), Code::busy);
  const int steps = static_cast<int>(ServedTransfers::kMaxRetracted / 5s) + 2;
  for (int i = 1; i <= steps; ++i) {
    Head more = put(1, 8 * static_cast<std::uint64_t>(i), 8, false);
    more.position = 8 * static_cast<std::uint64_t>(i);
    send(more, ones(8));
    comes(3000 + static_cast<std::uint64_t>(i));
    passes(5s);
  }
  EXPECT_EQ(retract(), Code::ok);
  EXPECT_NE(memory_[8 * static_cast<std::size_t>(steps) + 1], std::byte{1});
}

/// The frame is among the pieces of one recvmsg, with an aligned 8-byte value.
TEST_F(TcpStalls, AFrameThatIsCutInHalfHoldsNothing) {
  Head head = put(1, 0, 100);
  head.spans.push_back({104, 8});
  head.spans.push_back({200, 100});
  const Bytes frame = frame_of(head, ones(208));
  const std::size_t half = frame.size() - 158;  // the first 50 bytes are there
  send_bytes(Bytes(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(half)));
  const auto limit = base::Deadline::after(base::Clock::steady(), 5s);
  while ((endpoint_->served().empty() || endpoint_->served()[0].bytes < 50) && !limit.passed())
    std::this_thread::yield();
  ASSERT_EQ(retract(), Code::busy);
  passes(ServedTransfers::kMaxStallRetracted + 1s);
  EXPECT_EQ(retracted(region_->region(), false), Code::ok);
  send_bytes(Bytes(frame.begin() + static_cast<std::ptrdiff_t>(half), frame.end()));
  expect_end(1, Code::unreachable);
  EXPECT_EQ(memory_[60], std::byte{static_cast<unsigned char>(60 * 7)});
  EXPECT_EQ(memory_[104], std::byte{static_cast<unsigned char>(104 * 7)});
  EXPECT_EQ(memory_[299], std::byte{static_cast<unsigned char>(299 * 7)});
  comes(2);  // the connection goes on
}

TEST_F(TcpStalls, AnInvalidatedRegionIsLetGoOfAtOnce) {
  begin(1);
  EXPECT_EQ(transport_.retract(region_->region(), true).code(), Code::busy);
  passes(500ms);
  EXPECT_EQ(retracted(region_->region(), true), Code::ok);
  finish(1);
  expect_end(1, Code::unreachable);
  EXPECT_EQ(memory_[8], std::byte{8 * 7});
}

/// More than the sockets hold, so that the rest waits here.
TEST_F(TcpStalls, AReadThatNobodyTakesHoldsAnInvalidatedRegionNoLonger) {
  constexpr std::uint64_t kLarge = std::uint64_t{48} << 20;
  Bytes memory(kLarge, std::byte{5});
  const auto large = take(registry_.add(memory.data(), kLarge, {.read = true}, false));
  const WireKey key = take(decode_key(take(transport_.publish(large->region())).bytes));
  send({.type = FrameType::get,
        .id = 1,
        .serial = key.id.serial,
        .token = key.token,
        .spans = {{0, kLarge}}});
  const auto limit = base::Deadline::after(base::Clock::steady(), 5s);
  while (endpoint_->served().empty() && !limit.passed()) std::this_thread::yield();
  EXPECT_EQ(transport_.retract(large->region(), true).code(), Code::busy);
  passes(500ms);
  EXPECT_EQ(retracted(large->region(), true), Code::ok);
  std::fill(memory.begin(), memory.end(), std::byte{9});
  bool last = false;
  while (!last) {
    const auto heard = next();
    ASSERT_TRUE(heard.has_value());
    for (const std::byte each : heard->data) ASSERT_NE(each, std::byte{9}) << "read too late";
    last = heard->head.last;
    EXPECT_EQ(heard->head.code, last ? Code::unreachable : Code::ok);
  }
}

}  // namespace tcp_stall_test
}  // namespace linkspan::transport::tcp
