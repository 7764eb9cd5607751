// Tests the memory that strangers cost, and exhausted memory: the connection that was served is
// dropped, and all others are served as before.
#include "tests/support/raw_message.hpp"
#include "tests/unit/control_fixture.hpp"

namespace linkspan::control {
namespace control_memory_test {

using namespace std::chrono_literals;
using test::greet_raw, test::next_raw, test::take;

std::vector<std::byte> announced(std::uint32_t bytes) {
  const auto head = encode(base::FrameHeader{.length = bytes,
                                             .op = static_cast<std::uint16_t>(FrameOp::hello),
                                             .id = 1,
                                             .incarnation = test::kRawIncarnation});
  return {head.begin(), head.end()};
}

class ControlMemory : public test::ControlFixture,
                      public ::testing::WithParamInterface<const char*> {
 protected:
  bool tcp() const { return GetParam() == std::string_view("tcp"); }
  /// Returns true if the stranger was answered that there is no room, or its connection was reset.
  static bool was_dropped(base::FdChannel& stranger) {
    auto frame = stranger.receive();
    while (frame.ok() && *frame && static_cast<FrameOp>((*frame)->header.op) == FrameOp::hello)
      frame = stranger.receive();
    if (frame.ok() && !*frame) return false;
    if (frame.ok()) {
      EXPECT_EQ(decode_error((*frame)->payload).code(), Code::no_resource);
    }
    return true;
  }
};

TEST_P(ControlMemory, AFrameBeforeTheProofIsSmall) {
  serve(tcp());
  auto stranger = connect();
  ASSERT_EQ(test::send_message(stranger.fd(), announced(kMaxUnprovenFrame + 1), {}), 24);
  EXPECT_FALSE(next_raw(stranger).has_value());
  auto peer = connect();
  greet_raw(peer);
  ASSERT_EQ(answer(peer), Code::not_found);
  // From then on frames are as large as any.
  const std::vector<std::byte> large(2 * kMaxUnprovenFrame);
  test::send_raw(peer, FrameOp::notify, encode_notify(large));
  EXPECT_EQ(answer(peer), Code::not_found);
}

TEST_P(ControlMemory, OfAllStrangersIsBoundedAndOthersComeIn) {
  serve(tcp(), {.unproven = std::size_t{256} << 10});
  std::vector<base::FdChannel> strangers;
  std::vector<std::byte> most = announced(kMaxUnprovenFrame);
  most.resize(kMaxUnprovenFrame);  // all but its last bytes
  for (std::size_t i = 0; i < 32; ++i) {
    strangers.push_back(connect());
    (void)test::send_message(strangers.back().fd(), most, {});
  }
  auto peer = connect();
  greet_raw(peer);
  EXPECT_EQ(answer(peer), Code::not_found);
  const auto limit = base::Deadline::after(base::Clock::steady(), std::chrono::seconds(10));
  while (strangers.size() > 5 && !limit.passed()) std::erase_if(strangers, was_dropped);
  EXPECT_LE(strangers.size(), 5u);
}

TEST_P(ControlMemory, ThatEndsWhileAPeerIsServedEndsThatPeerAlone) {
  serve(tcp());
  auto other = connect(), served = connect();
  greet_raw(other);
  greet_raw(served);
  ASSERT_EQ(answer(other), Code::not_found);
  ASSERT_EQ(answer(served), Code::not_found);
  test::send_raw(served, FrameOp::import, encode_import("no memory"));
  const auto said = next_raw(served);
  ASSERT_TRUE(said.has_value());
  EXPECT_EQ(decode_error(said->payload).code(), Code::no_resource);
  EXPECT_FALSE(next_raw(served).has_value());
  EXPECT_EQ(answer(other), Code::not_found);
  auto next = connect();
  greet_raw(next);
  EXPECT_EQ(answer(next), Code::not_found);
}

INSTANTIATE_TEST_SUITE_P(By, ControlMemory, ::testing::Values("unix", "tcp"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace control_memory_test
}  // namespace linkspan::control
