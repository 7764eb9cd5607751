// Tests the sockets at which an Engine listens: which connections come in, what replaces a socket,
// and what an end leaves.
#include "control/listeners.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/raw_peer.hpp"
#include "tests/support/take.hpp"

namespace linkspan::control {
namespace listeners_test {

using namespace std::chrono_literals;
using test::take;

/// The test runs the event loop.
class ListenersTest : public ::testing::Test {
 protected:
  ListenersTest() {
    char name[] = "/tmp/linkspan-test-XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  ListenersTest(const ListenersTest&) = delete;
  ListenersTest& operator=(const ListenersTest&) = delete;
  ~ListenersTest() override {
    listeners_.reset();
    std::filesystem::remove_all(folder_);
  }
  Listeners& open() {
    listeners_ = std::make_unique<Listeners>(
        io_, us_, log_, [this](base::Fd socket) { accepted_.push_back(std::move(socket)); });
    return *listeners_;
  }
  SocketAddress at(const std::string& name) const { return take(parse_address(name, folder_)); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  /// Runs the event loop until `count` connections were accepted, for 10 s at most.
  std::size_t run_until(std::size_t count) {
    const auto limit = base::Deadline::in(10s);
    io_.restart();
    while (accepted_.size() < count && !limit.passed() && io_.run_one_for(limit.left()) != 0) {
    }
    return accepted_.size();
  }
  /// Runs what is due.
  void run() {
    io_.restart();
    io_.poll();
  }
  Code connect(const SocketAddress& address) {
    auto socket = test::socket_to(address.to_string());
    if (!socket.ok()) return socket.status().code();
    clients_.push_back(*std::move(socket));
    return Code::ok;
  }
  bool logged(const std::string& text) const {
    return std::ranges::any_of(
        lines_, [&](const auto& line) { return line.find(text) != std::string::npos; });
  }

  std::string folder_;
  std::vector<std::string> lines_;
  const base::Log log_{base::Level::info,
                       [this](base::Level, std::string_view line) { lines_.emplace_back(line); }};
  Identity us_{.engine = "server", .incarnation = 11};
  asio::io_context io_;
  std::vector<base::Fd> accepted_, clients_;
  std::unique_ptr<Listeners> listeners_;
};

TEST_F(ListenersTest, PassesEachConnection_WhenItListensAtAUnixSocketAndAtTcp) {
  Listeners& listeners = open();
  const SocketAddress local = take(listeners.listen(at("s")));
  const SocketAddress tcp = take(listeners.listen(at("tcp:127.0.0.1:0")));
  EXPECT_EQ(local.path, path("s"));
  EXPECT_NE(tcp.port, 0) << "the actual one";
  run();
  EXPECT_EQ(connect(local), Code::ok);
  EXPECT_EQ(run_until(1), 1u);
  EXPECT_TRUE(base::is_unix_socket(accepted_[0].get()));
  EXPECT_EQ(connect(tcp), Code::ok);
  EXPECT_EQ(connect(tcp), Code::ok);
  EXPECT_EQ(run_until(3), 3u);
  EXPECT_FALSE(base::is_unix_socket(accepted_[1].get()));
}

TEST_F(ListenersTest, ReturnsTheError_WhenItCannotListen) {
  Listeners& listeners = open();
  EXPECT_EQ(listeners.listen(at(path("missing/s"))).status().code(), Code::not_found);
  EXPECT_EQ(listeners.listen(at("tcp:192.0.2.1:0")).status().code(), Code::permission_denied)
      << "TCP may not leave the host";
  const SocketAddress taken = take(listeners.listen(at("tcp:127.0.0.1:0")));
  EXPECT_EQ(listeners.listen(taken).status().code(), Code::busy);
  run();
  EXPECT_EQ(connect(taken), Code::ok) << "the earlier one goes on";
  EXPECT_EQ(run_until(1), 1u);
}

TEST_F(ListenersTest, ReplacesTheSocket_WhenItListensElsewhere) {
  Listeners& listeners = open();
  const SocketAddress first = take(listeners.listen(at("first")));
  const SocketAddress tcp = take(listeners.listen(at("tcp:127.0.0.1:0")));
  run();
  const SocketAddress second = take(listeners.listen(at("second")));
  const SocketAddress other = take(listeners.listen(at("tcp:127.0.0.1:0")));
  run();
  EXPECT_FALSE(std::filesystem::exists(path("first")));
  EXPECT_EQ(connect(first), Code::not_found);
  EXPECT_EQ(connect(tcp), Code::unreachable);
  EXPECT_EQ(connect(second), Code::ok);
  EXPECT_EQ(connect(other), Code::ok);
  EXPECT_EQ(run_until(2), 2u);
}

TEST_F(ListenersTest, ListensAtOnePort_WhenDataConnectionsHaveAddressesOfTheirOwn) {
  us_.security = Security::insecure;
  us_.interfaces = {{.name = "second",
                     .at = {{.address = take(net::resolve("127.0.0.2", 0)).front(), .prefix = 8}}}};
  Listeners& listeners = open();
  const SocketAddress tcp = take(listeners.listen(at("tcp:127.0.0.1:0")));
  run();
  SocketAddress beside = tcp;
  beside.host = "127.0.0.2";
  EXPECT_EQ(connect(tcp), Code::ok);
  EXPECT_EQ(connect(beside), Code::ok);
  EXPECT_EQ(run_until(2), 2u);
  EXPECT_TRUE(logged("data connections are taken at " + tcp.to_string() +
                     " and 127.0.0.2:" + std::to_string(tcp.port)));

  us_.interfaces.clear();
  const SocketAddress alone = take(listeners.listen(at("tcp:127.0.0.1:0")));
  run();
  for (const auto& each : {tcp, beside}) EXPECT_EQ(connect(each), Code::unreachable);
  EXPECT_EQ(connect(alone), Code::ok);
  EXPECT_EQ(run_until(3), 3u);
}

TEST_F(ListenersTest, Warns_WhenAnybodyMayConnectFromOutside) {
  us_.security = Security::insecure;
  Listeners& listeners = open();
  (void)take(listeners.listen(at("tcp:127.0.0.1:0")));
  EXPECT_FALSE(logged("open to everybody")) << "it is on loopback";
  const SocketAddress all = take(listeners.listen(at("tcp:0.0.0.0:0")));
  EXPECT_TRUE(logged(all.to_string() +
                     " is open to everybody who reaches it, as `insecure` says: whoever connects "
                     "is a peer, and nothing shows who he is"));
  lines_.clear();
  us_.secret = "a secret of the tests";
  (void)take(listeners.listen(at("tcp:0.0.0.0:0")));
  EXPECT_FALSE(logged("open to everybody"));
}

TEST_F(ListenersTest, AcceptsNothingAndLeavesNoPath_WhenItIsStopped) {
  Listeners& listeners = open();
  const SocketAddress local = take(listeners.listen(at("s")));
  const SocketAddress tcp = take(listeners.listen(at("tcp:127.0.0.1:0")));
  run();
  listeners.stop();
  listeners.resume();
  run();
  EXPECT_FALSE(std::filesystem::exists(path("s")));
  EXPECT_EQ(connect(local), Code::not_found);
  EXPECT_EQ(connect(tcp), Code::unreachable);
  EXPECT_TRUE(accepted_.empty());
}

/// Another thread may listen while the Control thread stops.
TEST_F(ListenersTest, ClosesTheSocketAgain_WhenItWasStoppedBefore) {
  Listeners& listeners = open();
  listeners.stop();
  const SocketAddress local = take(listeners.listen(at("s")));
  const SocketAddress tcp = take(listeners.listen(at("tcp:127.0.0.1:0")));
  run();
  EXPECT_FALSE(std::filesystem::exists(path("s")));
  EXPECT_EQ(connect(local), Code::not_found);
  EXPECT_EQ(connect(tcp), Code::unreachable);
}

TEST_F(ListenersTest, LetsConnectionsWait_WhenUnixOnesExceedTheirRate) {
  constexpr std::size_t kBurst = 2, kAll = 8;
  constexpr auto kEach = 10ms;
  us_.limits.local_a_second = static_cast<unsigned>(1s / kEach);
  us_.limits.local_burst = kBurst;
  Listeners& listeners = open();
  const SocketAddress local = take(listeners.listen(at("s")));
  const SocketAddress tcp = take(listeners.listen(at("tcp:127.0.0.1:0")));
  run();
  for (std::size_t i = 0; i < kAll; ++i) ASSERT_EQ(connect(local), Code::ok);
  const base::Time begin = base::Clock::steady().now();
  EXPECT_GE(run_until(kBurst), kBurst);
  run();
  const auto passed = static_cast<std::size_t>((base::Clock::steady().now() - begin) / kEach);
  EXPECT_LE(accepted_.size(), kBurst + passed + 1);
  const std::size_t before = accepted_.size();
  for (std::size_t i = 0; i < kAll; ++i) ASSERT_EQ(connect(tcp), Code::ok);
  EXPECT_GE(run_until(before + kAll), before + kAll) << "TCP has no such limit";
  EXPECT_EQ(run_until(2 * kAll), 2 * kAll) << "those that wait come in later";
}

}  // namespace listeners_test
}  // namespace linkspan::control
