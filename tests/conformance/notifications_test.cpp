// Tests messages to the peer's CPU: in order, none lost, however late they are read.
#include <thread>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace notifications_test {

class Notifications : public ::testing::Test {
 protected:
  Notifications() {
    must(reader_.listen());
    peer_ = take(writer_->connect(reader_.address()));
  }
  /// Writes the number and a length that follows from it. Returns false if there is no room now.
  bool put(std::uint64_t number) {
    std::vector<std::byte> message(8 + number % 200);
    std::memcpy(message.data(), &number, sizeof number);
    const Status sent = peer_.notify(message);
    EXPECT_TRUE(sent.ok() || sent.code() == Code::no_resource) << sent.to_string();
    return sent.ok();
  }
  /// Reads all that are there, and checks that they continue the earlier ones.
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

/// Sends each notification when the one before was read, so the reader is about to sleep, asleep,
/// or still awake.
TEST_F(Notifications, WakeWhoSleeps) {
  constexpr std::uint64_t kSent = 1000;
  std::atomic<std::uint64_t> read{0};
  std::jthread writing([&] {
    const auto limit = base::Deadline::after(base::Clock::steady(), 300s);
    for (std::uint64_t i = 1; i <= kSent && !limit.passed(); ++i) {
      while (read < i - 1 && !limit.passed()) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::microseconds(i % 7 * 20));
      put(i);
    }
  });
  while (read < kSent) {
    const auto begin = base::Clock::steady().now();
    const std::vector<Notification> came = reader_.notifications(60s);
    ASSERT_EQ(came.size(), 1u) << "behind " << read;
    ASSERT_LT(base::Clock::steady().now() - begin, 40s) << "a bell that is lost costs 60 s";
    ++read;
  }
}

TEST_F(Notifications, OfANewPeerAndTheEndWakeWhoSleeps) {
  std::vector<Notification> came;
  const auto sleep = [&] { came = reader_.notifications(20s); };
  {
    std::jthread sleeping(sleep);
    std::this_thread::sleep_for(20ms);
    const Peer peer = take(writer_->connect(reader_.address()));
    ASSERT_TRUE(peer.notify({}).ok());
  }
  EXPECT_EQ(came.size(), 1u);
  const auto begin = base::Clock::steady().now();
  {
    std::jthread sleeping(sleep);
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(reader_.close(5s).to_string(), "ok");
  }
  EXPECT_TRUE(came.empty());
  EXPECT_TRUE(reader_.notifications(20s).empty());
  EXPECT_LT(base::Clock::steady().now() - begin, 5s);
}

TEST_F(Notifications, WaitNoLongerThanTheyMay) {
  const auto begin = base::Clock::steady().now();
  EXPECT_TRUE(reader_.notifications(50ms).empty());
  EXPECT_GE(base::Clock::steady().now() - begin, 50ms);
  EXPECT_TRUE(reader_.notifications(Duration::min()).empty());
}

TEST_F(Notifications, RefuseWhatIsTooLong) {
  const Status longer = peer_.notify(std::vector<std::byte>(65537));
  EXPECT_EQ(longer.code(), Code::invalid_argument);
  EXPECT_NE(longer.what().find("65537"), std::string::npos);
  EXPECT_TRUE(peer_.notify(std::vector<std::byte>(65536)).ok());
}

}  // namespace notifications_test
}  // namespace linkspan::test
