// Tests the control connection of a real Engine against clients that break the rules.
#include "control/control_plane.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>

#include "control/exchange.hpp"
#include "control/socket_address.hpp"
#include "linkspan/engine.hpp"
#include "tests/support/raw_peer.hpp"
#include "tests/support/take.hpp"

namespace linkspan::control {
namespace control_test {

using namespace std::chrono_literals;

class ControlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/linkspan-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    auto engine = Engine::open({.name = "server", .socket_dir = folder_, .use_gpu = false});
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    server_ = std::make_unique<Engine>(*std::move(engine));
    const Status listening = server_->listen("s");
    ASSERT_TRUE(listening.ok()) << listening.to_string();
    at_ = server_->address();
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  base::FdChannel connect() const { return test::connect_raw(at_); }
  static std::optional<base::Frame> next(base::FdChannel& channel) {
    return test::next_raw(channel);
  }
  static void send(base::FdChannel& channel, FrameOp op, std::span<const std::byte> payload,
                   std::uint64_t incarnation = test::kRawIncarnation,
                   std::span<base::Fd> fds = {}) {
    test::send_raw(channel, op, payload, incarnation, fds);
  }
  static void greet(base::FdChannel& channel) { test::greet_raw(channel); }
  /// Checks that a correct peer is still admitted and served.
  void expect_server_is_well() {
    auto other = Engine::open({.name = "other", .socket_dir = folder_, .use_gpu = false});
    ASSERT_TRUE(other.ok());
    auto peer = other->connect("s", 10s);
    ASSERT_TRUE(peer.ok()) << peer.status().to_string();
    EXPECT_EQ(peer->lookup("nothing").status().code(), Code::not_found);
  }

  std::string folder_, at_;
  std::unique_ptr<Engine> server_;
};

/// Connects by a Unix socket and by TCP. The other peers, which must not be disturbed, use the Unix
/// socket.
class ControlBytes : public ControlTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    ControlTest::SetUp();
    if (!by_tcp()) return;
    const Status listening = server_->listen("tcp:127.0.0.1:0");
    ASSERT_TRUE(listening.ok()) << listening.to_string();
    at_ = server_->address();
  }
  static bool by_tcp() { return GetParam() == std::string_view("tcp"); }
};

TEST_P(ControlBytes, GarbageClosesThatConnectionOnly) {
  for (const std::string& garbage :
       {std::string(4096, '\xff'), std::string("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")}) {
    base::FdChannel channel = connect();
    ASSERT_GT(::send(channel.fd(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
    const auto said = next(channel);
    if (said) {
      EXPECT_EQ(static_cast<FrameOp>(said->header.op), FrameOp::error);
    }
  }
  expect_server_is_well();
}

TEST_P(ControlBytes, RefusesWhatIsNoHelloAndSaysWhy) {
  for (int i = 0; i < (by_tcp() ? 2 : 3); ++i) {
    base::FdChannel channel = connect();
    if (i == 0) send(channel, FrameOp::import, encode_import("x"));
    if (i == 1) send(channel, FrameOp::hello, encode_import("x"));
    if (i == 2) send(channel, FrameOp::hello, encode(Hello{}));  // no pidfd
    const auto said = next(channel);
    ASSERT_TRUE(said.has_value());
    EXPECT_EQ(static_cast<FrameOp>(said->header.op), FrameOp::error);
    EXPECT_EQ(decode_error(said->payload).code(), Code::corrupt);
    EXPECT_FALSE(next(channel).has_value());
  }
  expect_server_is_well();
}

TEST_P(ControlBytes, AnUnknownOpIsAnsweredAndTheConnectionStays) {
  base::FdChannel channel = connect();
  greet(channel);
  send(channel, static_cast<FrameOp>(999), {});
  auto said = next(channel);
  ASSERT_TRUE(said.has_value());
  EXPECT_EQ(said->header.id, 7u);
  EXPECT_EQ(decode_error(said->payload).code(), Code::unsupported);
  send(channel, FrameOp::import, encode_import("nothing"));
  said = next(channel);
  ASSERT_TRUE(said.has_value());
  EXPECT_EQ(decode_error(said->payload).code(), Code::not_found);
}

TEST_P(ControlBytes, AMalformedExchangeEndsThatConnectionOnly) {
  for (const FrameOp op : {FrameOp::offer, FrameOp::accept, FrameOp::finished, FrameOp::withdraw})
    for (const std::size_t bytes : {0u, 3u, 64u}) {
      base::FdChannel channel = connect();
      greet(channel);
      send(channel, op, std::vector<std::byte>(bytes, std::byte{0xfe}));
      const auto said = next(channel);
      ASSERT_TRUE(said.has_value());
      EXPECT_EQ(decode_error(said->payload).code(), Code::corrupt);
      EXPECT_FALSE(next(channel).has_value());
    }
  const MessageOffer bad[] = {{.bytes = 5},
                              {.serial = 5},
                              {.space = static_cast<MatchSpace>(9)},
                              {.kind = static_cast<MemoryKind>(99)},
                              {.require = std::string(257, 'x')}};
  for (const MessageOffer& offer : bad)
    EXPECT_EQ(decode_offer(encode(offer)).status().code(), Code::corrupt);
  expect_server_is_well();
}

TEST_P(ControlBytes, UnknownExchangesAreAnsweredAndRegionsThatWereNotOfferedStayOurs) {
  base::FdChannel channel = connect();
  greet(channel);
  send(channel, FrameOp::accept, encode(MessageAccept{.serial = 3}));
  auto said = next(channel);
  ASSERT_TRUE(said.has_value());
  auto end = decode_finished(said->payload);
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->status.code(), Code::not_found);
  EXPECT_TRUE(end->by_sender);
  send(channel, FrameOp::offer, encode(MessageOffer{.tag = 1}));
  send(channel, FrameOp::withdraw, encode_withdraw(true));
  said = next(channel);
  ASSERT_TRUE(said.has_value());
  end = decode_finished(said->payload);
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->status.code(), Code::canceled);
  auto memory = server_->allocate_shared(4096);
  ASSERT_TRUE(memory.ok());
  for (std::uint64_t serial = 0; serial < 4; ++serial) {
    send(channel, FrameOp::import, encode_import({}, serial));
    said = next(channel);
    ASSERT_TRUE(said.has_value());
    EXPECT_EQ(decode_error(said->payload).code(), Code::not_found);
  }
  expect_server_is_well();
}

TEST_P(ControlBytes, AFrameOfAnotherIncarnationEndsIt) {
  base::FdChannel channel = connect();
  greet(channel);
  send(channel, FrameOp::import, encode_import("nothing"), 43);
  const auto said = next(channel);
  ASSERT_TRUE(said.has_value());
  EXPECT_EQ(decode_error(said->payload).code(), Code::corrupt);
  EXPECT_FALSE(next(channel).has_value());
  expect_server_is_well();
}

TEST_F(ControlTest, SomebodyElsesSocketIsBusyAndADeadOneIsReplaced) {
  auto second = Engine::open({.name = "second", .socket_dir = folder_, .use_gpu = false});
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->listen("s").code(), Code::busy);
  {
    auto stale = base::Fd::from("socket", ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_TRUE(stale.ok());
    const auto address = unix_address(folder_ + "/stale");
    ASSERT_TRUE(address.ok());
    ASSERT_EQ(::bind(stale->get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address),
              0);
  }
  EXPECT_TRUE(second->listen("stale").ok());
}

TEST_F(ControlTest, WaitsForAListenerUntilTheDeadlineAndNotLonger) {
  auto client = Engine::open({.name = "client", .socket_dir = folder_, .use_gpu = false});
  ASSERT_TRUE(client.ok());
  EXPECT_EQ(client->connect("nobody", 50ms).status().code(), Code::unreachable);
  EXPECT_EQ(client->connect("udp:host:1", 50ms).status().code(), Code::invalid_argument);
  EXPECT_EQ(client->connect(std::string(200, 'x'), 50ms).status().code(), Code::invalid_argument);
  EXPECT_EQ(client->accept(10ms).status().code(), Code::timed_out);
}

TEST_F(ControlTest, AServerThatNeverAnswersTimesOut) {
  auto mute = listen_at(folder_ + "/mute");
  ASSERT_TRUE(mute.ok());
  auto client = Engine::open({.name = "client", .socket_dir = folder_, .use_gpu = false});
  ASSERT_TRUE(client.ok());
  EXPECT_EQ(client->connect("mute", 100ms).status().code(), Code::timed_out);
}

/// A busy server is not dead: its socket stays, and connecting processes wait for room.
TEST_F(ControlTest, AFullQueueOfConnectionsIsNoDeadServer) {
  const std::string path = folder_ + "/busy";
  auto busy = listen_at(path);
  ASSERT_TRUE(busy.ok());
  std::vector<base::Fd> waiting;
  Result<base::Fd> next = connect_to(path);
  for (; next.ok() && waiting.size() < 1000; next = connect_to(path))
    waiting.push_back(*std::move(next));
  EXPECT_EQ(next.status().code(), Code::no_resource) << next.status().to_string();
  EXPECT_EQ(listen_at(path).status().code(), Code::busy);
  auto client = Engine::open({.name = "client", .socket_dir = folder_, .use_gpu = false});
  ASSERT_TRUE(client.ok());
  const Status full = client->connect("busy", 30ms).status();
  EXPECT_EQ(full.code(), Code::no_resource) << full.to_string();
  for (std::size_t i = 0; i < waiting.size(); ++i) ::close(::accept(busy->get(), nullptr, nullptr));
  EXPECT_EQ(client->connect("busy", 30ms).status().code(), Code::timed_out);  // a mute one has room
}

TEST_F(ControlTest, APeerOfAnotherUserIsRefusedAndToldWhy) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: it connects as another user";
  ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);  // or the file system refuses it first
  ASSERT_EQ(::chmod((folder_ + "/s").c_str(), 0777), 0);
  constexpr long kNobody = 65534, kKeep = -1;
  ASSERT_EQ(::syscall(SYS_setresuid, kKeep, kNobody, kKeep), 0);  // of this thread only
  auto socket = connect_to(folder_ + "/s");
  ASSERT_EQ(::syscall(SYS_setresuid, kKeep, 0L, kKeep), 0);
  ASSERT_TRUE(socket.ok()) << socket.status().to_string();
  base::FdChannel channel(*std::move(socket));
  const auto said = next(channel);
  ASSERT_TRUE(said.has_value());
  const Status why = decode_error(said->payload);
  EXPECT_EQ(why.code(), Code::permission_denied);
  EXPECT_NE(why.what().find("65534"), std::string::npos) << why.to_string();
  EXPECT_FALSE(next(channel).has_value());
  expect_server_is_well();
}

/// The peer may still be writing to memory that it has mapped.
TEST_F(ControlTest, APeerThatClosedItsSocketAndLivesIsLostAndNotGone) {
  for (const bool says_goodbye : {false, true}) {
    std::optional<base::FdChannel> channel(connect());
    greet(*channel);
    const auto peer = server_->accept(10s);
    ASSERT_TRUE(peer.ok()) << peer.status().to_string();
    if (says_goodbye) send(*channel, FrameOp::goodbye, {});
    channel.reset();
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    while (peer->state() == PeerState::up && !limit.passed()) server_->progress();
    // A wrong report would come at once, and `gone` follows `lost`.
    const auto soon = base::Deadline::after(base::Clock::steady(), says_goodbye ? 10s : 50ms);
    while (peer->state() == PeerState::lost && !soon.passed()) server_->progress();
    EXPECT_EQ(peer->state(), says_goodbye ? PeerState::gone : PeerState::lost);
  }
}

TEST_F(ControlTest, AnEngineIsNotItsOwnPeer) {
  EXPECT_EQ(server_->connect("s", 5s).status().code(), Code::invalid_argument);
  expect_server_is_well();
}

TEST_F(ControlTest, AServerOfAnotherUserIsRefusedToo) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: it listens as another user";
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  constexpr long kNobody = 65534, kKeep = -1;
  ASSERT_EQ(::syscall(SYS_setresuid, kKeep, kNobody, kKeep), 0);  // of this thread only
  auto theirs = listen_at(folder_ + "/theirs");
  ASSERT_EQ(::syscall(SYS_setresuid, kKeep, 0L, kKeep), 0);
  ASSERT_TRUE(theirs.ok()) << theirs.status().to_string();
  for (const bool any_uid : {false, true}) {
    auto client = Engine::open(
        {.name = "client", .socket_dir = folder_, .any_uid = any_uid, .use_gpu = false});
    ASSERT_TRUE(client.ok());
    const Status status = client->connect("theirs", any_uid ? 100ms : 5s).status();
    EXPECT_EQ(status.code(), any_uid ? Code::timed_out : Code::permission_denied)
        << status.to_string();
    if (!any_uid) {
      EXPECT_NE(status.what().find("65534"), std::string::npos) << status.to_string();
      EXPECT_NE(status.what().find("any_uid"), std::string::npos) << status.to_string();
    }
  }
}

TEST_F(ControlTest, WhatIsNoPidfdIsNoHello) {
  char name[] = "/tmp/linkspan-test-XXXXXX";
  base::Fd file(::mkstemp(name));
  ::unlink(name);
  base::Fd kinds[] = {std::move(file), base::Fd(::eventfd(1, EFD_CLOEXEC)),
                      base::Fd(::open("/", O_DIRECTORY | O_RDONLY | O_CLOEXEC)),
                      base::Fd(::epoll_create1(EPOLL_CLOEXEC))};
  const Hello hello{
      .engine = "odd", .process = base::this_process(), .key_share = {}, .transports = {}};
  for (base::Fd& fd : kinds) {
    ASSERT_TRUE(fd.valid());
    base::FdChannel channel = connect();
    send(channel, FrameOp::hello, encode(hello), 42, std::span(&fd, 1));
    const auto said = next(channel);
    ASSERT_TRUE(said.has_value());
    EXPECT_EQ(decode_error(said->payload).code(), Code::corrupt);
  }
  expect_server_is_well();
}

TEST_F(ControlTest, AFileThatIsNoSocketStays) {
  const std::string data = folder_ + "/data";
  const base::Fd file(::open(data.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  ASSERT_EQ(::symlink(data.c_str(), (folder_ + "/link").c_str()), 0);
  for (const char* name : {"/data", "/link"}) {
    const Status status = server_->listen("unix:" + folder_ + name);
    EXPECT_EQ(status.code(), Code::invalid_argument) << status.to_string();
  }
  EXPECT_EQ(::access(data.c_str(), F_OK), 0);
}

TEST_F(ControlTest, ListensElsewhereWhenItIsTold) {
  ASSERT_TRUE(server_->listen("t").ok());
  auto client = Engine::open({.name = "client", .socket_dir = folder_, .use_gpu = false});
  ASSERT_TRUE(client.ok());
  EXPECT_TRUE(client->connect("t", 10s).ok());
}

TEST_F(ControlTest, AnswersThatNobodyAskedForAreDroppedAndTheirFdsClosed) {
  base::FdChannel channel = connect();
  greet(channel);
  for (int i = 0; i < 500; ++i) {
    auto self = base::open_pidfd(::getpid());
    ASSERT_TRUE(self.ok());
    for (const std::uint64_t id : {std::uint64_t{1}, std::uint64_t{1} << 63 | 5}) {
      const Status queued = channel.queue({.op = static_cast<std::uint16_t>(FrameOp::imported),
                                           .id = id,
                                           .incarnation = test::kRawIncarnation},
                                          encode_imported({}),
                                          id == 1 ? std::span(&*self, 1) : std::span<base::Fd>());
      ASSERT_TRUE(queued.ok());
      while (channel.wants_write()) (void)channel.flush();
    }
  }
  send(channel, FrameOp::import, encode_import("nothing"));
  const auto said = next(channel);
  ASSERT_TRUE(said.has_value());
  EXPECT_EQ(decode_error(said->payload).code(), Code::not_found);
}

TEST_P(ControlBytes, NotificationsThatNobodyTakesAreBoundedForEachPeer) {
  base::FdChannel channel = connect();
  greet(channel);
  const std::vector<std::byte> large(65536, std::byte{7});
  constexpr std::size_t kRoom = (std::size_t{16} << 20) / 65536;
  const auto flood = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      send(channel, FrameOp::notify, encode_notify(large));
      while (channel.wants_write()) ASSERT_TRUE(channel.flush().ok());
    }
    send(channel, FrameOp::import, encode_import("nothing"));
    ASSERT_TRUE(next(channel).has_value());  // all was received
  };
  flood(kRoom + 5);
  EXPECT_EQ(server_->notifications().size(), kRoom);
  flood(3);
  EXPECT_EQ(server_->notifications().size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(By, ControlBytes, ::testing::Values("unix", "tcp"),
                         [](const auto& param) { return std::string(param.param); });

class ControlTcp : public ControlTest {
 protected:
  Engine open(const EngineOptions& options) { return test::take(Engine::open(options)); }
  EngineOptions options(std::optional<Security> security = {}) {
    return {.name = "client",
            .socket_dir = folder_,
            .use_gpu = false,
            .security = security,
            .log = [this](LogLevel level, std::string_view line) {
              const base::MutexLock lock(mutex_);
              if (level == LogLevel::warning) warnings_.emplace_back(line);
            }};
  }
  std::vector<std::string> warnings() {
    const base::MutexLock lock(mutex_);
    return warnings_;
  }

 private:
  base::Mutex mutex_;
  std::vector<std::string> warnings_ LINKSPAN_GUARDED_BY(mutex_);
};

TEST_F(ControlTcp, CountsStrangersInItsLog) {
  constexpr std::size_t kStrangers = 300;
  {
    Engine attacked = open(options());
    ASSERT_TRUE(attacked.listen("tcp:127.0.0.1:0").ok());
    for (std::size_t i = 0; i < kStrangers; ++i) {
      base::FdChannel stranger = test::connect_raw(attacked.address());
      test::send_raw(stranger, FrameOp::notify, {});  // in the place of a hello
      while (const auto frame = test::any_raw(stranger)) {
      }
    }
    ASSERT_TRUE(attacked.close(10s).ok());
  }
  std::size_t lines = 0, told = 0;
  for (const std::string& each : warnings()) {
    const bool sum = each.find("more connections were dropped") != std::string::npos;
    if (!sum && each.find("is dropped") == std::string::npos) continue;
    ++lines;
    told += sum ? std::stoul(each) : 1;
  }
  EXPECT_EQ(told, kStrangers);
  EXPECT_LT(lines, kStrangers / 4);
}

/// The callback takes the locks of the Engine and waits for its Control thread.
TEST_F(ControlTcp, ItsLogMayCallTheEngine) {
  Engine other = open(options());
  ASSERT_TRUE(other.listen("tcp:127.0.0.1:0").ok());
  base::Mutex mutex;  // these outlive the Engine, whose log uses them
  base::Condition changed;
  std::optional<Status> connected;
  std::optional<Engine> engine;
  EngineOptions calls = options();
  calls.log = [&](LogLevel, std::string_view) {
    {
      const base::MutexLock lock(mutex);
      if (connected) return;
    }
    EXPECT_FALSE(engine->dump().empty());
    EXPECT_FALSE(engine->metrics().empty());
    const Status status = engine->connect(other.address(), 5s).status();
    const base::MutexLock lock(mutex);
    connected = status;
    changed.notify_all();
  };
  engine = open(calls);
  // A peer of this host by TCP, of which the Control thread warns.
  ASSERT_TRUE(engine->connect(other.address(), 10s).ok());
  {
    const base::MutexLock lock(mutex);
    const auto limit = base::Deadline::after(base::Clock::steady(), 30s);
    while (!connected && !limit.passed()) changed.wait(mutex, limit);
    ASSERT_TRUE(connected.has_value());
    EXPECT_EQ(connected->to_string(), "ok");
  }
  EXPECT_TRUE(engine->close(10s).ok());
}

TEST_F(ControlTcp, IsListenedAtBesideAUnixSocketAndEachMovesAlone) {
  const std::string by_unix = server_->address();
  ASSERT_TRUE(server_->listen("tcp:127.0.0.1:0").ok());
  const std::string first = server_->address();
  EXPECT_EQ(first.find("tcp:127.0.0.1:"), 0u) << first;
  EXPECT_NE(first, "tcp:127.0.0.1:0");
  Engine client = open(options());
  EXPECT_TRUE(client.connect(first, 10s).ok());
  EXPECT_TRUE(client.connect(by_unix, 10s).ok());
  EXPECT_EQ(client.listen(first).code(), Code::busy);

  ASSERT_TRUE(server_->listen("tcp:localhost:0").ok());
  EXPECT_TRUE(client.connect(server_->address(), 10s).ok());
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  Status left = client.connect(first, 20ms).status();
  while (left.ok() && !limit.passed()) left = client.connect(first, 20ms).status();
  EXPECT_EQ(left.code(), Code::unreachable) << left.to_string();
  ASSERT_TRUE(server_->listen("moved").ok());
  EXPECT_TRUE(client.connect("moved", 10s).ok());
  EXPECT_TRUE(client.connect(server_->address(), 10s).ok());
}

TEST_F(ControlTcp, WaitsForAListenerAndRefusesWhatCannotBe) {
  Engine client = open(options());
  ASSERT_TRUE(server_->listen("tcp:127.0.0.1:0").ok());
  const std::string port = server_->address();
  server_.reset();
  EXPECT_EQ(client.connect(port, 50ms).status().code(), Code::unreachable);
  EXPECT_EQ(client.connect("tcp:127.0.0.1:0").status().code(), Code::invalid_argument);
  const std::string nobody(64, 'x');  // a name cannot have such a part, so no resolver is asked
  EXPECT_EQ(client.connect("tcp:" + nobody + ":1").status().code(), Code::not_found);
  const base::Fd mute = test::take(listen_at(test::take(parse_address(port, {})), false)).socket;
  EXPECT_EQ(client.connect(port, 100ms).status().code(), Code::timed_out);
}

/// The listener behaves like a process that is ending, or a proxy whose server has not started yet.
TEST_F(ControlTcp, ConnectsAgainWhereAConnectionEndsWithoutAWord) {
  Engine client = open(options());
  auto hasty = test::take(listen_at(test::take(parse_address("tcp:127.0.0.1:0", {})), false));
  const std::string port = hasty.at.to_string();
  std::atomic<int> came{0};
  std::jthread closing([&] {
    pollfd ready{.fd = hasty.socket.get(), .events = POLLIN, .revents = 0};
    while (came < 3 && ::poll(&ready, 1, 10'000) > 0)
      if (base::Fd(::accept(hasty.socket.get(), nullptr, nullptr)).valid()) ++came;
    hasty.socket = {};
    EXPECT_EQ(server_->listen(port).to_string(), "ok");
  });
  EXPECT_EQ(client.connect(port, 10s).status().to_string(), "ok");
  EXPECT_EQ(came, 3);
}

TEST_F(ControlTcp, LeavesLoopbackOnlyIfThatIsSaidAndLogsIt) {
  const std::string everybody = "tcp:0.0.0.0:0";
  for (const std::optional<Security> security :
       {std::optional<Security>(), std::optional(Security::loopback_only)}) {
    Engine careful = open(options(security));
    const Status refused = careful.listen(everybody);
    EXPECT_EQ(refused.code(), Code::permission_denied) << refused.to_string();
    EXPECT_NE(refused.what().find("LINKSPAN_SECURITY=insecure"), std::string::npos)
        << refused.what();
    EXPECT_EQ(careful.address(), "");
    EXPECT_EQ(careful.connect("tcp:192.0.2.1:1").status().code(), Code::permission_denied);
    EXPECT_TRUE(careful.close(10s).ok());  // which brings all that was logged
  }
  EXPECT_TRUE(warnings().empty());
  Engine open_to_all = open(options(Security::insecure));
  ASSERT_TRUE(open_to_all.listen("tcp:127.0.0.1:0").ok());
  ASSERT_TRUE(open_to_all.listen(everybody).ok());
  const std::string address = open_to_all.address(), port = address.substr(address.rfind(':'));
  EXPECT_TRUE(server_->connect("tcp:127.0.0.1" + port, 10s).ok());
  EXPECT_TRUE(open_to_all.close(10s).ok());
  ASSERT_EQ(warnings().size(), 1u) << "the first listen() is of loopback";
  EXPECT_NE(warnings()[0].find(address), std::string::npos) << warnings()[0];
}

TEST(SocketFolder, IsOursAloneOrSaysWhatIsWrongAndWhatToDo) {
  char name[] = "/tmp/linkspan-test-XXXXXX";
  ASSERT_NE(::mkdtemp(name), nullptr);
  const std::string base = name;
  const auto refused = [](const std::string& folder, const std::string& word) {
    const Status status = secure_folder(folder);
    EXPECT_EQ(status.code(), Code::permission_denied) << status.to_string();
    for (const std::string& named : {folder, word, std::string("LINKSPAN_SOCKET_DIR")})
      EXPECT_NE(status.what().find(named), std::string::npos) << status.what();
  };
  EXPECT_TRUE(secure_folder(base + "/made").ok());
  struct stat facts {};
  ASSERT_EQ(::stat((base + "/made").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0700u);
  for (const mode_t mode : {0777u, 0720u, 0702u, 01777u}) {
    ASSERT_EQ(::chmod((base + "/made").c_str(), mode), 0);
    refused(base + "/made", "chmod 700");
  }
  ASSERT_EQ(::chmod((base + "/made").c_str(), 0755), 0);
  EXPECT_TRUE(secure_folder(base + "/made").ok());
  ASSERT_EQ(::symlink((base + "/made").c_str(), (base + "/link").c_str()), 0);
  refused(base + "/link", "symbolic link");
  const base::Fd file(::open((base + "/file").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  refused(base + "/file", "no folder");
  std::filesystem::remove_all(base);
}

TEST(SocketFolder, NamesTheSettingAndTheRemedy_WhenItCannotBeMade) {
  const std::string setting = "XDG_RUNTIME_DIR=\"/nonexistent/run\"";
  const Status status = secure_folder("/nonexistent/run/linkspan", setting);
  EXPECT_EQ(status.code(), Code::not_found) << status.to_string();
  for (const std::string& part :
       {setting + ": the socket folder /nonexistent/run/linkspan cannot be made",
        std::string("make /nonexistent/run, or set LINKSPAN_SOCKET_DIR to a folder of uid ")})
    EXPECT_NE(status.what().find(part), std::string::npos) << status.what();
  const Status proc = secure_folder("/proc/linkspan");  // no process can create a folder there
  EXPECT_NE(proc.what().find("LINKSPAN_SOCKET_DIR"), std::string::npos) << proc.what();
}

TEST(SocketFolder, AnotherUsersIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: it gives a folder away";
  char name[] = "/tmp/linkspan-test-XXXXXX";
  ASSERT_NE(::mkdtemp(name), nullptr);
  ASSERT_EQ(::chown(name, 65534, 65534), 0);
  const Status status = secure_folder(name);
  EXPECT_EQ(status.code(), Code::permission_denied);
  EXPECT_NE(status.what().find("65534"), std::string::npos) << status.what();
  ::rmdir(name);
}

}  // namespace control_test
}  // namespace linkspan::control
