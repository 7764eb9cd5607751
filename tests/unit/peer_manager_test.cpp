// Tests how peers are met: addresses that are listened at, connects that fail, and the peers that
// wait for accept().
#include "engine/peers/peer_manager.hpp"

#include <future>

#include "tests/unit/control_fixture.hpp"
#include "tests/unit/engine_pair.hpp"

namespace linkspan::engine {
namespace peer_manager_test {

using namespace std::chrono_literals;
using test::impl_of, test::is, test::must, test::take;

class Manager : public test::EnginePair {
 protected:
  Status connected(const std::string& address, const ConnectOptions& options = {}) {
    return service_.connect(address, options).status();
  }
  PeerManager& service_ = impl_of(near_).services().manager;
  PeerManager& listener_ = impl_of(far_).services().manager;
};

TEST_F(Manager, ListensWhereItWasToldLast) {
  EXPECT_EQ(service_.address(), "");
  const std::string first = listener_.address();
  EXPECT_TRUE(first.starts_with("unix:/")) << first;
  const std::string second = first + ".2";
  EXPECT_TRUE(is(listener_.listen(second), Code::ok));
  EXPECT_EQ(listener_.address(), second);
  EXPECT_TRUE(is(connected(first, {.timeout = 20ms}), Code::unreachable));
  EXPECT_TRUE(is(connected(second), Code::ok));
  EXPECT_TRUE(is(service_.listen(second), Code::busy));
  EXPECT_EQ(service_.address(), "");
}

TEST_F(Manager, ListensByTcpBesideAUnixSocket) {
  const std::string local = listener_.address();
  must(listener_.listen("tcp:127.0.0.1:0"));
  const std::string remote = listener_.address();
  EXPECT_TRUE(remote.starts_with("tcp:127.0.0.1:")) << remote;
  EXPECT_FALSE(remote.ends_with(":0")) << remote;
  EXPECT_TRUE(is(connected(local), Code::ok));
}

TEST_F(Manager, KeepsItsAddress_WhenTheNextIsRefused) {
  const std::string before = listener_.address();
  for (const char* wrong : {"tcp:127.0.0.1", "tcp:127.0.0.1:65536", "unix:"})
    EXPECT_TRUE(is(listener_.listen(wrong), Code::invalid_argument)) << wrong;
  EXPECT_EQ(listener_.address(), before);
  EXPECT_TRUE(is(connected(before), Code::ok));
}

TEST_F(Manager, SaysWhyAConnectFails) {
  EXPECT_TRUE(is(connected("tcp:127.0.0.1"), Code::invalid_argument));
  EXPECT_TRUE(is(connected("tcp:127.0.0.1:0"), Code::invalid_argument, "nobody is at port 0"));
  EXPECT_TRUE(is(connected("nobody there", {.timeout = 20ms}), Code::unreachable));
  EXPECT_TRUE(is(connected(far_.address(), {.expect = "another"}), Code::permission_denied,
                 "the peer there is \"far\", and not \"another\""));
  EXPECT_TRUE(is(connected(far_.address(), {.expect = "far"}), Code::ok));
}

TEST_F(Manager, AcceptsInTheirOrder) {
  EXPECT_TRUE(is(listener_.accept(0s).status(), Code::timed_out, "no peer has connected"));
  const Engine one = take(Engine::open({.name = "one", .use_gpu = false}));
  const Engine two = take(Engine::open({.name = "two", .use_gpu = false}));
  for (const Engine* each : {&one, &two})
    (void)take(impl_of(*each).services().manager.connect(far_.address(), {}));
  const auto first = take(listener_.accept(10s)), second = take(listener_.accept(10s));
  EXPECT_EQ(first.name, "one");
  EXPECT_EQ(second.name, "two");
  EXPECT_NE(first.id, second.id);
  EXPECT_TRUE(is(listener_.accept(1ms).status(), Code::timed_out));
}

TEST_F(Manager, EndsAccept_WhenItIsClosed) {
  auto waits = std::async(std::launch::async, [&] { return listener_.accept(10s).status(); });
  listener_.close();
  EXPECT_TRUE(is(waits.get(), Code::canceled, "the Engine is closed"));
  EXPECT_TRUE(is(listener_.accept(1h).status(), Code::canceled));
}

TEST(ManagerByTcp, WarnsOnceThatAPeerIsOnThisHost) {
  std::atomic<int> warnings{0};
  Engine here = take(Engine::open({.use_gpu = false, .log = [&](LogLevel, std::string_view line) {
                                     if (test::contains(line, "is on this host but was met by TCP"))
                                       ++warnings;
                                   }}));
  Engine there = take(Engine::open({.use_gpu = false, .log = [](LogLevel, std::string_view) {}}));
  must(there.listen("tcp:127.0.0.1:0"));
  for (int i = 0; i < 2; ++i) {
    const Peer peer = take(here.connect(there.address()));
    EXPECT_TRUE(test::eventually([&] { return warnings.load() == 1; }));
    must(peer.close(10s));
  }
  must(here.close(10s));
  EXPECT_EQ(warnings.load(), 1);
}

/// A PeerManager alone, for Sessions without a connection.
class ManagerAlone : public ::testing::Test, public control::SessionWriter {
 protected:
  /// Meets a peer, which is gone at once.
  void meet(std::uint64_t id, bool initiated = false) {
    const auto session = std::make_shared<control::Session>(id, initiated, base::Fd(), identity_,
                                                            events_, *this, log_);
    manager_.on_up(session);
    manager_.on_terminated(*session);
  }
  /// Returns the ids of all peers that accept() returns.
  std::vector<std::uint64_t> accepted() {
    std::vector<std::uint64_t> ids;
    for (auto peer = manager_.accept(0s); peer.ok(); peer = manager_.accept(0s))
      ids.push_back(peer->id);
    return ids;
  }
  void write_when_ready(std::uint64_t) override {}

  const base::Options options_{};
  const control::Identity identity_{.engine = "alone", .incarnation = 1};
  const base::Log log_{base::Level::off, nullptr};
  const Transports transports_{};
  test::Quiet events_;
  PeerTable peers_;
  Inbox inbox_{log_};
  std::unique_ptr<ProgressThread> progress_ = take(ProgressThread::create());
  PeerManager manager_{{.options = options_,
                        .identity = identity_,
                        .transports = transports_,
                        .peers = peers_,
                        .inbox = inbox_,
                        .progress = *progress_,
                        .log = log_}};
};

TEST_F(ManagerAlone, AcceptsOnlyPeersThatCameByThemselves) {
  meet(1, true);
  meet(2);
  EXPECT_EQ(accepted(), std::vector<std::uint64_t>{2});
}

TEST_F(ManagerAlone, ForgetsPeersThatAreGone_BeyondItsBound) {
  for (std::uint64_t id = 1; id <= PeerManager::kMaxUnaccepted + 3; ++id) meet(id);
  const auto ids = accepted();
  ASSERT_EQ(ids.size(), PeerManager::kMaxUnaccepted);
  EXPECT_EQ(ids.front(), 1u);
  EXPECT_EQ(ids.back(), PeerManager::kMaxUnaccepted);
}

}  // namespace peer_manager_test
}  // namespace linkspan::engine
