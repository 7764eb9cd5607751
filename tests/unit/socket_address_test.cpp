#include "control/socket_address.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <thread>
#include <vector>

#include "net/staggered_connect.hpp"
#include "tests/support/take.hpp"

namespace linkspan::control {
namespace socket_address_test {

using namespace std::chrono_literals;
using test::take;

SocketAddress parsed(const std::string& text) { return take(parse_address(text, "/run/here")); }

TEST(SocketAddress, IsAPathANameOrAHostAndAPort) {
  for (const char* text : {"unix:/a/b", "/a/b"}) {
    EXPECT_EQ(parsed(text).path, "/a/b");
    EXPECT_FALSE(parsed(text).is_tcp());
    EXPECT_EQ(parsed(text).to_string(), "unix:/a/b");
  }
  EXPECT_EQ(parsed("name").path, "/run/here/name");
  EXPECT_EQ(parsed("unix:name").path, "/run/here/name");

  struct {
    const char *text, *host;
    std::uint16_t port;
  } const good[] = {{"tcp:127.0.0.1:4711", "127.0.0.1", 4711},
                    {"tcp:[::1]:0", "::1", 0},
                    {"tcp:[fe80::1%lo]:9", "fe80::1%lo", 9},
                    {"tcp:localhost:1", "localhost", 1},
                    {"tcp:gpu-7.rack.net:65535", "gpu-7.rack.net", 65535}};
  for (const auto& each : good) {
    const SocketAddress address = parsed(each.text);
    EXPECT_TRUE(address.is_tcp());
    EXPECT_EQ(address.host, each.host);
    EXPECT_EQ(address.port, each.port);
    EXPECT_EQ(address.to_string(), each.text);
  }
}

TEST(SocketAddress, EndsWithTheIncarnationOfItsEngine) {
  for (const char* text : {"unix:/a/b#01c5529aa6ec45a8", "tcp:127.0.0.1:4711#01c5529aa6ec45a8"}) {
    EXPECT_EQ(parsed(text).incarnation, 0x01c5529aa6ec45a8u);
    EXPECT_EQ(parsed(text).to_string(), text);
  }
  EXPECT_EQ(parsed("/a/b#01c5529aa6ec45a8").path, "/a/b");
  for (const char* path : {"/a#b", "/a#0", "/a#01c5529aa6ec45ag", "/a#001c5529aa6ec45a8"}) {
    EXPECT_EQ(parsed(path).path, path) << "any other number sign is part of the path";
    EXPECT_EQ(parsed(path).incarnation, 0u);
  }
}

TEST(SocketAddress, ListsAreSplitAtCommasBeforeASchemeAlone) {
  const auto all = take(parse_addresses("name,x,unix:/a,b,tcp:[::1]:4", "/run/here"));
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].path, "/run/here/name,x");
  EXPECT_EQ(all[1].path, "/a,b");
  EXPECT_EQ(all[2].to_string(), "tcp:[::1]:4");
  EXPECT_EQ(parse_addresses("", "/run/here").status().code(), Code::invalid_argument);
  EXPECT_EQ(parse_addresses("unix:/a,tcp:", "/run/here").status().code(), Code::invalid_argument);
}

TEST(SocketAddress, ThatIsNoneIsNamedWithWhatIsWrong) {
  struct {
    std::string text;
    const char* word;
  } const bad[] = {{"", "empty"},
                   {"unix:", "empty"},
                   {"a/b", "slash"},
                   {std::string("a\0b", 3), "zero byte"},
                   {std::string("tcp:a\0b:1", 9), "zero byte"},
                   {"/" + std::string(107, 'x'), "107 bytes"},
                   {"udp:host:1", "only unix:/path and tcp:host:port"},
                   {"127.0.0.1:4711", "only unix:/path and tcp:host:port"},
                   {"tcp:", "no port"},
                   {"tcp:host", "no port"},
                   {"tcp:host:", "0 to 65535"},
                   {"tcp:host:65536", "0 to 65535"},
                   {"tcp:host:-1", "0 to 65535"},
                   {"tcp:host:1x", "0 to 65535"},
                   {"tcp:host: 1", "0 to 65535"},
                   {"tcp::1", "no host"},
                   {"tcp:[]:1", "no host"},
                   {"tcp:::1:4711", "brackets"},
                   {"tcp:[::1:4711", "such a name"},
                   {"tcp:[127.0.0.1]:1", "brackets"},
                   {"tcp:a b:1", "such a name"},
                   {"tcp:a/b:1", "such a name"},
                   {"tcp:" + std::string(254, 'x') + ":1", "253 bytes"}};
  for (const auto& each : bad) {
    const Status status = parse_address(each.text, "/run/here").status();
    EXPECT_EQ(status.code(), Code::invalid_argument) << each.text;
    EXPECT_NE(status.what().find(each.word), std::string::npos) << status.what();
    EXPECT_NE(status.what().find("\"" + each.text + "\""), std::string::npos) << status.what();
  }
}

TEST(SocketAddress, LeavesLoopbackOnlyWhereThatIsMeant) {
  for (const char* text : {"tcp:127.0.0.1:1", "tcp:127.9.9.9:1", "tcp:[::1]:1", "tcp:localhost:1"})
    EXPECT_TRUE(resolve(parsed(text), false).ok()) << text;
  for (const char* text : {"tcp:0.0.0.0:0", "tcp:[::]:0", "tcp:192.0.2.1:1", "tcp:[2001:db8::1]:1",
                           "tcp:[::ffff:192.0.2.1]:1", "tcp:128.0.0.1:1"}) {
    const Status refused = resolve(parsed(text), false).status();
    EXPECT_EQ(refused.code(), Code::permission_denied) << text;
    for (const char* word : {text, "EngineOptions::security", "LINKSPAN_SECURITY=insecure"})
      EXPECT_NE(refused.what().find(word), std::string::npos) << refused.what();
    EXPECT_TRUE(resolve(parsed(text), true).ok()) << text;
  }
}

TEST(SocketAddress, OfAListenerHasTheRealPort) {
  const Listening first = take(listen_at(parsed("tcp:127.0.0.1:0"), false));
  EXPECT_NE(first.at.port, 0);
  EXPECT_FALSE(first.beyond_loopback);
  EXPECT_EQ(listen_at(first.at, false).status().code(), Code::busy);
  EXPECT_TRUE(take(listen_at(parsed("tcp:0.0.0.0:0"), true)).beyond_loopback);
  const auto limit = base::Deadline::after(base::Clock::steady(), std::chrono::seconds(5));
  EXPECT_TRUE(connect_to(take(resolve(first.at, false)), limit).ok());
}

TEST(SocketAddress, NamesTheSetting_WhenTheFolderLeavesNoRoomForAName) {
  const std::string folder = "/run/" + std::string(98, 'd');
  const Status status = parse_address("decode", folder).status();
  EXPECT_EQ(status.code(), Code::invalid_argument);
  for (const char* part : {"107 bytes", folder.c_str(), "set LINKSPAN_SOCKET_DIR"})
    EXPECT_NE(status.what().find(part), std::string::npos) << status.what();
  const Status own = parse_address("unix:" + folder + "/long name", "/run").status();
  EXPECT_EQ(own.what().find("LINKSPAN_SOCKET_DIR"), std::string::npos) << own.what();
  EXPECT_EQ(take(parse_address("a", folder)).path, folder + "/a");
}

TEST(SocketAddress, SaysWhatToDo_WhenASocketHasNoFolder) {
  const Status status = listen_at("/nonexistent/run/decode.sock").status();
  EXPECT_EQ(status.code(), Code::not_found) << status.to_string();
  for (const char* part : {"unix:/nonexistent/run/decode.sock", "make its folder /nonexistent/run"})
    EXPECT_NE(status.what().find(part), std::string::npos) << status.what();
}

TEST(SocketAddress, OfAListenerMayBeSeveralWithOnePort) {
  const std::vector<net::TcpAddress> beside{take(net::resolve("127.0.0.1", 0)).front(),
                                            take(net::resolve("127.0.0.2", 0)).front()};
  const Listening all = take(listen_at(parsed("tcp:127.0.0.1:0"), false, beside));
  ASSERT_EQ(all.beside.size(), 1u) << "the first is there already";
  EXPECT_EQ(take(net::address_of(all.beside[0])).to_string(),
            "127.0.0.2:" + std::to_string(all.at.port));
  const Status busy =
      listen_at(parsed("tcp:127.0.0.3:" + std::to_string(all.at.port)), false, beside).status();
  EXPECT_EQ(busy.code(), Code::busy);
  EXPECT_NE(busy.what().find("named interfaces: listen at 127.0.0.1"), std::string::npos)
      << busy.what();
  EXPECT_TRUE(take(listen_at(parsed("tcp:0.0.0.0:0"), true, beside)).beside.empty());
}

TEST(SocketAddress, OfLoopbackHasNoOthersBesideIt) {
  const std::vector<net::TcpAddress> beside{take(net::resolve("192.0.2.1", 0)).front()};
  const Listening alone = take(listen_at(parsed("tcp:127.0.0.1:0"), true, beside));
  EXPECT_TRUE(alone.beside.empty());
  EXPECT_FALSE(alone.beyond_loopback);
}

/// Many processes find the path of a dead listener at once.
TEST(SocketAddress, OfADeadListenerHasOneSuccessorAtATime) {
  char folder[] = "/tmp/linkspan-test-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/stale";
  for (int round = 0; round < 100; ++round) {
    (void)take(listen_at(path));  // dead at once, and its file stays
    std::deque<Result<base::Fd>> made;
    for (int i = 0; i < 4; ++i) made.emplace_back(Status());
    std::atomic<bool> begin{false};
    {
      std::vector<std::jthread> threads;
      for (auto& each : made)
        threads.emplace_back([&] {
          while (!begin) std::this_thread::yield();
          each = listen_at(path);
        });
      begin = true;
    }
    std::size_t listening = 0;
    for (const auto& each : made) {
      listening += each.ok() ? 1 : 0;
      if (each.ok()) continue;
      EXPECT_EQ(each.status().code(), Code::busy) << each.status().to_string();
    }
    ASSERT_EQ(listening, 1u) << "round " << round;
    EXPECT_FALSE(std::filesystem::exists(path + ".lock"));
  }
  std::filesystem::remove_all(folder);
}

TEST(SocketAddress, WhoConnectsMayWaitInAFullQueue) {
  char folder[] = "/tmp/linkspan-test-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/s";
  const base::Fd listening = take(listen_at(path));
  std::deque<base::Fd> queue;
  for (;;) {
    auto next = connect_to(path);
    if (next.status().code() == Code::no_resource) break;
    queue.push_back(take(std::move(next)));
  }
  const base::Time begin = base::Clock::steady().now();
  EXPECT_EQ(connect_to(path, 50ms).status().code(), Code::no_resource);
  EXPECT_GE(base::Clock::steady().now() - begin, 50ms);
  {
    const std::jthread accepts(
        [&] { (void)base::Fd(::accept(listening.get(), nullptr, nullptr)); });
    const base::Fd last = take(connect_to(path, 10s));
    EXPECT_NE(::fcntl(last.get(), F_GETFL) & O_NONBLOCK, 0);
  }
  std::filesystem::remove_all(folder);
}

/// The owner of the lock checks whether the path is stale; no other process does meanwhile.
TEST(SocketAddress, ThatAnotherOneBeginsToListenAtIsBusy) {
  char folder[] = "/tmp/linkspan-test-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/s", lock = path + ".lock";
  {
    const base::Fd other(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
    const Status busy = listen_at(path).status();
    EXPECT_EQ(busy.code(), Code::busy) << busy.to_string();
    EXPECT_NE(busy.what().find(lock), std::string::npos) << busy.what();
  }
  EXPECT_TRUE(listen_at(path).ok()) << "what a killed process left is no lock";
  std::filesystem::remove_all(folder);
}

}  // namespace socket_address_test
}  // namespace linkspan::control
