// Messages to the peer's CPU: in order, none lost, however late they are read.
#include <thread>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace {

class Notifications : public ::testing::Test {
 protected:
  Notifications() {
    must(reader_.listen());
    peer_ = take(writer_->connect(reader_.address()));
  }
  /// The number and a length that follows from it. False: no room by now.
  bool put(std::uint64_t number) {
    std::vector<std::byte> message(8 + number % 200);
    std::memcpy(message.data(), &number, sizeof number);
    const Status sent = peer_.notify(message);
    EXPECT_TRUE(sent.ok() || sent.code() == Code::no_resource) << sent.to_string();
    return sent.ok();
  }
  /// All that are there; they go on where the last ones ended.
  void read() {
    for (const Notification& each : reader_.notifications()) {
      ++came_;
      std::uint64_t number = 0;
      std::memcpy(&number, each.bytes.data(), sizeof number);
      ASSERT_EQ(number, came_);
      ASSERT_EQ(each.bytes.size(), 8 + number % 200);
    }
  }
  void read_until(std::uint64_t count) {
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    while (came_ < count && !limit.passed() && !HasFatalFailure()) read();
    EXPECT_EQ(came_, count);
  }

  std::unique_ptr<Engine> writer_ =
      std::make_unique<Engine>(take(Engine::open(engine_options("writer"))));
  Engine reader_ = take(Engine::open(engine_options("reader")));
  Peer peer_;
  std::uint64_t came_ = 0;
};

/// Far more than lie in the memory that both share.
TEST_F(Notifications, WaitInOrderForAReaderThatLooksLate) {
  constexpr std::uint64_t kSent = 20000;
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  for (std::uint64_t i = 1; i <= kSent && !limit.passed();) i += put(i) ? 1 : 0;
  read_until(kSent);
}

TEST_F(Notifications, KeepTheirOrderWhileTheReaderLooks) {
  constexpr std::uint64_t kSent = 20000;
  std::jthread writing([&] {
    for (std::uint64_t i = 1; i <= kSent;) i += put(i) ? 1 : 0;
  });
  read_until(kSent);
}

TEST_F(Notifications, OutliveTheirWriter) {
  for (std::uint64_t i = 1; i <= 10; ++i) ASSERT_TRUE(put(i));
  writer_.reset();
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  const Peer gone = take(reader_.accept(5s));
  while (gone.state() != PeerState::gone && !limit.passed()) std::this_thread::yield();
  read_until(10);
}

TEST_F(Notifications, RefuseWhatIsTooLong) {
  const Status longer = peer_.notify(std::vector<std::byte>(65537));
  EXPECT_EQ(longer.code(), Code::invalid_argument);
  EXPECT_NE(longer.what().find("65537"), std::string::npos);
  EXPECT_TRUE(peer_.notify(std::vector<std::byte>(65536)).ok());
}

}  // namespace
}  // namespace linkspan::test
