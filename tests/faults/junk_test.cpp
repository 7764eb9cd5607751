// Tests strangers at a TCP port, which every process of the host can reach: junk, silence, endless
// connections. Each is closed by itself, connected peers notice nothing, and there is room again.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/conformance/engine_fixture.hpp"
#include "tests/faults/usage.hpp"
#include "tests/support/raw_peer.hpp"

namespace linkspan::test {
namespace junk_test {

constexpr const char* kAnyPort = "tcp:127.0.0.1:0";
/// For an undisturbed notification or transfer; a busy machine takes some of it.
constexpr Duration kBound = 10s;
constexpr Block kAll{0, 0, 1u << 20};

/// An Engine with a peer of either kind.
class JunkOnAPort : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("LINKSPAN_TCP_STREAMS", "1", 1); }  // of all ends
  static void TearDownTestSuite() { ::unsetenv("LINKSPAN_TCP_STREAMS"); }
  JunkOnAPort() {
    must(pair_.engine.listen(kAnyPort));
    remote_.connect(pair_.engine.address());
    here_ = Held::make(pair_.engine, {.kind = "shared"});
    pair_.far.add("there", {.kind = "shared"});
    there_ = pair_.remote("there");
    remote_.add("remote", {.kind = "shared"});
    const Peer remote = take(pair_.engine.accept(5s));
    const RemoteRegion at_remote = take(remote.lookup("remote"));
    // Opens the one data connection, so that the counts do not grow later.
    must(finished(remote.write(here_.region, at_remote, std::span(&kAll, 1))));
  }
  /// Moves bytes of the peers meanwhile.
  void go_on() {
    const base::Time begin = base::Clock::steady().now();
    remote_.notify({std::to_string(++moved_)});
    const std::vector<Notification> came = pair_.engine.notifications(5s);
    ASSERT_EQ(came.size(), 1u);
    here_.fill(moved_);
    pair_.far.fill("there", moved_ + 1);
    EXPECT_EQ(finished(pair_.peer.write(here_.region, there_, std::span(&kAll, 1))).to_string(),
              "ok");
    EXPECT_EQ(pair_.far.difference("there", moved_ + 1, {{0, moved_, 0, kAll.bytes}}), "");
    EXPECT_LT(base::Clock::steady().now() - begin, kBound);
  }
  void go_on_for(Duration time) {
    const auto limit = base::Deadline::after(base::Clock::steady(), time);
    while (!limit.passed() && !HasFatalFailure()) go_on();
  }
  /// Checks that a correct peer is admitted.
  void expect_room() {
    FarEngine next;
    next.connect(pair_.engine.address());
    EXPECT_TRUE(pair_.engine.accept(5s).ok());
  }

  Held here_;  // outlives the Engine
  Pair pair_;
  FarEngine remote_;
  RemoteRegion there_;
  std::uint64_t moved_ = 0;
};

TEST_F(JunkOnAPort, IsClosedAndDisturbsNobody) {
  std::atomic<bool> end{false};
  std::atomic<std::uint64_t> strangers{0};
  const std::string port = pair_.engine.address();
  const auto knock = [&](unsigned seed, std::size_t most) {
    std::minstd_rand random(seed);
    while (!end) {
      auto socket = socket_to(port);
      if (!socket.ok()) continue;
      std::string bytes(random() % (most + 1), '\0');
      for (char& each : bytes) each = static_cast<char>(random());
      (void)::send(socket->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      ++strangers;
    }
  };
  {
    const std::jthread noisy(knock, 1, 4096), brief(knock, 2, 23), gone(knock, 3, 0);
    go_on_for(700ms);
    end = true;
  }
  EXPECT_GT(strangers, 100u);
  go_on();
  expect_room();
}

/// The Engine's stderr is a full pipe that nothing reads.
TEST(Junk, DoesNotFreezeAnEngine_WhoseLinesAreNotRead) {
  const std::string pipe = "/tmp/linkspan-unread-" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const base::Fd unread(::open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(unread.valid());
  const std::string some(4096, 'x');
  while (::write(unread.get(), some.data(), some.size()) > 0) {
  }
  ::setenv("LINKSPAN_TCP_STREAMS", "1", 1);
  {
    FarEngine far(
        {"LINKSPAN_TEST_STDERR=" + pipe, std::string("LINKSPAN_TEST_ADDRESS=") + kAnyPort});
    ::unlink(pipe.c_str());
    far.add("there", {.kind = "host"});
    Engine engine = take(Engine::open(engine_options("honest")));
    Held here = Held::make(engine, {.kind = "host"});
    const Peer peer = take(engine.connect(far.address(), 20s));
    const RemoteRegion there = take(peer.lookup("there", 20s));
    for (std::uint64_t round = 1; round <= 4; ++round) {
      for (int i = 0; i < 100; ++i) {
        base::FdChannel stranger = connect_raw(far.address());
        send_raw(stranger, control::FrameOp::notify, {});  // in the place of a hello
        while (const auto frame = any_raw(stranger)) {     // until it was dropped
        }
      }
      here.fill(round);
      EXPECT_EQ(finished(peer.write(here.region, there, std::span(&kAll, 1))).to_string(), "ok");
      ASSERT_TRUE(engine.connect(far.address(), 20s).ok()) << "the Control thread stands still";
    }
    EXPECT_TRUE(engine.close(10s).ok());
    here = {};
  }
  ::unsetenv("LINKSPAN_TCP_STREAMS");
}

/// 10,000 of all kinds, of which none stays: what this process holds is bounded all along.
TEST_F(JunkOnAPort, TenThousandLeaveNothing) {
  constexpr std::size_t kStrangers = 10'000, kEach = 500;
  const std::vector<std::byte> hello =
      control::encode(control::Hello{.engine = "junk", .process = {}, .transports = {}});
  std::vector<std::byte> stream =
      control::encode(control::DataConnectionHello{.transport = "tcp", .number = 1});
  std::minstd_rand random(7);
  const Usage before = Usage::lowest(200ms, {});
  Usage most = before;
  for (std::size_t i = 0; i < kStrangers; ++i) {
    auto socket = socket_to(pair_.engine.address());
    ASSERT_TRUE(socket.ok()) << socket.status().to_string();
    base::FdChannel channel(*std::move(socket));
    const std::size_t cut = random() % stream.size();
    switch (i % 4) {
      case 0:  // gone at once
        break;
      case 1:
        send_raw(channel, control::FrameOp::data_connection, stream);  // of no session
        break;
      case 2:
        send_raw(channel, control::FrameOp::hello, std::span(hello).first(cut % hello.size()));
        break;
      default:
        stream[cut] ^= std::byte{0x55};
        send_raw(channel, static_cast<control::FrameOp>(random() % 20), stream);
    }
    if (i % kEach != 0) continue;
    const Usage now = Usage::now();
    most.fds = std::max(most.fds, now.fds);
    most.mappings = std::max(most.mappings, now.mappings);
    go_on();
    if (HasFatalFailure()) return;
  }
  EXPECT_LT(most.fds, before.fds + 300) << before.to_string();  // handshakes in progress
  EXPECT_LT(most.mappings, before.mappings + 10) << before.to_string();
  const Usage after = Usage::lowest(20s, before);
  EXPECT_LE(after.fds, before.fds) << before.to_string() << "; after: " << after.to_string();
  EXPECT_LE(after.mappings, before.mappings);
  expect_room();
}

/// More handshakes than the limit, each with less than a header: a correct peer is admitted.
TEST_F(JunkOnAPort, HalfOpenHandshakesTakeNoMoreThanTheirRoom) {
  constexpr std::size_t kHandshakes = 300;
  std::vector<base::FdChannel> slow;
  for (std::size_t i = 0; i < kHandshakes; ++i) {
    slow.push_back(connect_raw(pair_.engine.address()));
    (void)::send(slow.back().fd(), "\x18", 1, MSG_NOSIGNAL);
  }
  expect_room();
  go_on();
  slow.clear();
  expect_room();
  go_on();
}

}  // namespace junk_test
}  // namespace linkspan::test
