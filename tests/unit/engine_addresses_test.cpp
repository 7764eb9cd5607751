// Tests the addresses by which Engines find each other, and peers by their names.
#include <unistd.h>

#include <algorithm>
#include <set>

#include "control/socket_address.hpp"
#include "tests/unit/engine_pair.hpp"

namespace linkspan::test {
namespace engine_addresses_test {

constexpr const char* kAnyPort = "tcp:127.0.0.1:0";

Engine open(const char* name, bool insecure = false) {
  EngineOptions options{.name = name, .use_gpu = false};
  if (insecure) options.security = Security::insecure;
  return take(Engine::open(options));
}

/// Returns the addresses of a list.
std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> all;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    all.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return all;
}

std::string without_id(const std::string& address) {
  return address.substr(0, address.size() - 17);
}
std::string id_of(const std::string& address) { return address.substr(address.size() - 17); }

/// Returns whether the connection to the only peer of `engine` is by TCP.
bool is_by_tcp(const Engine& engine) { return contains(engine.dump(), "(at 127.0.0.1:"); }

class EngineAddresses : public ::testing::Test {
 protected:
  EngineAddresses() {
    must(far_.listen());
    unix_ = far_.address();
    must(far_.listen(kAnyPort));
    tcp_ = far_.address();
    id_ = id_of(far_.addresses());
  }

  Engine near_ = open("near"), far_ = open("far");
  std::string unix_, tcp_, id_;
};

TEST_F(EngineAddresses, AreEmpty_BeforeTheEngineListens) { EXPECT_EQ(near_.addresses(), ""); }

TEST_F(EngineAddresses, NameTheUnixSocketFirst_AndTheEngineInEach) {
  EXPECT_EQ(id_.front(), '#');
  EXPECT_EQ(far_.addresses(), unix_ + id_ + "," + tcp_ + id_);
}

TEST_F(EngineAddresses, NameEachAddressOfTheHost_ForAListenerAtAll) {
  Engine open_to_all = open("all", true);
  must(open_to_all.listen("tcp:0.0.0.0:0"));
  const std::string port = open_to_all.address().substr(open_to_all.address().rfind(':'));
  std::set<std::string> once;
  for (const std::string& each : split(open_to_all.addresses())) {
    EXPECT_FALSE(contains(each, "0.0.0.0")) << each;
    EXPECT_TRUE(each.starts_with("tcp:")) << each;
    EXPECT_TRUE(without_id(each).ends_with(port)) << each;
    EXPECT_TRUE(once.insert(each).second) << each;
  }
}

TEST_F(EngineAddresses, AreConnectedByTheUnixSocket_OnOneHost) {
  EXPECT_EQ(take(near_.connect(far_.addresses())).name(), "far");
  EXPECT_FALSE(is_by_tcp(near_));
}

TEST_F(EngineAddresses, AreConnectedByTcp_WhereTheSocketIsNotThere) {
  const Peer peer = take(near_.connect("unix:/nonexistent/socket" + id_ + "," + tcp_ + id_));
  EXPECT_EQ(peer.name(), "far");
  EXPECT_TRUE(is_by_tcp(near_));
}

TEST_F(EngineAddresses, AreConnectedByTcp_WhereAnotherEngineHasTheSocket) {
  Engine other = open("other");
  must(other.listen());
  const Peer peer = take(near_.connect(other.address() + id_ + "," + tcp_ + id_));
  EXPECT_EQ(peer.name(), "far");
  EXPECT_TRUE(is_by_tcp(near_));
}

TEST_F(EngineAddresses, AreRefusedAtOnce_WhereAnotherEngineListens) {
  Engine other = open("other");
  must(other.listen());
  const std::string at_unix = other.address();
  must(other.listen(kAnyPort));
  const std::string at_tcp = other.address();
  const auto begin = base::Clock::steady().now();
  EXPECT_TRUE(is(near_.connect(at_tcp + id_).status(), Code::permission_denied,
                 "the peer there is \"other\", and not the Engine of the address"));
  const Status all = near_.connect(at_unix + id_ + "," + at_tcp + id_).status();
  EXPECT_TRUE(is(all, Code::permission_denied, at_unix + id_ + ": the peer there is"));
  EXPECT_TRUE(is(all, Code::permission_denied, at_tcp + id_ + ": the peer there is"));
  EXPECT_LT(base::Clock::steady().now() - begin, 5s);
}

TEST_F(EngineAddresses, AreRetriedWhileNobodyListens_AndNameWhatWasRefused) {
  Engine other = open("other");
  must(other.listen());
  const std::string list = other.address() + id_ + ",tcp:127.0.0.1:1" + id_;
  const Status status = near_.connect(list, 100ms).status();
  EXPECT_TRUE(is(status, Code::permission_denied, "127.0.0.1:1"));
  EXPECT_TRUE(is(status, Code::permission_denied, "the peer there is \"other\""));
  EXPECT_TRUE(is(near_.connect("unix:/nonexistent/socket,tcp:127.0.0.1:1", 100ms).status(),
                 Code::unreachable));
}

/// As a wildcard listener's list, with an address that another Engine has on this host.
TEST_F(EngineAddresses, AreTriedFurther_WhereAnotherEngineAnswersAtOneOfThem) {
  Engine other = open("other");
  const std::string port = tcp_.substr(tcp_.rfind(':'));
  must(other.listen("tcp:127.0.0.2" + port));
  for (const std::string& list : {"tcp:127.0.0.2" + port + id_ + "," + tcp_ + id_,
                                  tcp_ + id_ + ",tcp:127.0.0.2" + port + id_})
    EXPECT_EQ(take(near_.connect(list)).name(), "far");
  EXPECT_TRUE(is(near_.connect("tcp:127.0.0.2" + port + id_).status(), Code::permission_denied,
                 "not the Engine of the address"));
}

TEST_F(EngineAddresses, AreRefusedAtOnce_WhereTcpIsAndTheSocketIsNotThere) {
  const std::string nowhere = "unix:/nonexistent/socket" + id_ + ",";
  const auto begin = base::Clock::steady().now();
  const Status beyond = near_.connect(nowhere + "tcp:192.0.2.1:4711" + id_).status();
  EXPECT_TRUE(is(beyond, Code::permission_denied, "beyond loopback"));
  EXPECT_TRUE(is(beyond, Code::permission_denied, "no socket at /nonexistent/socket"));
  const Status name = near_.connect(nowhere + tcp_ + id_, {.timeout = 10s, .expect = "x"}).status();
  EXPECT_TRUE(is(name, Code::permission_denied, "and not \"x\""));
  EXPECT_LT(base::Clock::steady().now() - begin, 5s);
}

TEST_F(EngineAddresses, AreConnectedByTcp_WhereTheSocketIsMute) {
  const std::string path = unix_.substr(std::string("unix:").size()) + ".mute";
  const auto mute = take(control::listen_at(path));  // accepts nothing
  const Peer peer = take(near_.connect("unix:" + path + id_ + "," + tcp_ + id_, 2s));
  EXPECT_EQ(peer.name(), "far");
  ::unlink(path.c_str());
}

TEST_F(EngineAddresses, MayHaveOneThatIsNotResolved) {
  const std::string beyond = "tcp:192.0.2.1:4711" + id_;  // needs a secret
  EXPECT_EQ(take(near_.connect(beyond + "," + tcp_ + id_)).name(), "far");
  EXPECT_TRUE(is(near_.connect(beyond).status(), Code::permission_denied, "beyond loopback"));
}

TEST_F(EngineAddresses, MayBeListenedAtAgain_ByTheEngineAfter) {
  const std::string before = far_.addresses();
  must(far_.close(10s));
  Engine again = open("again");
  must(again.listen(before.substr(0, before.find(','))));
  EXPECT_EQ(again.address(), unix_);
  EXPECT_NE(id_of(again.addresses()), id_);
}

TEST_F(EngineAddresses, ArePartsOfTheConnectThatIsRefused) {
  std::string many = tcp_;
  for (int i = 0; i < 64; ++i) many += "," + tcp_;
  EXPECT_TRUE(is(near_.connect(many).status(), Code::invalid_argument, "more than 64"));
  EXPECT_TRUE(is(near_.connect(tcp_ + ",tcp:127.0.0.1:0").status(), Code::invalid_argument,
                 "nobody is at port 0"));
  EXPECT_TRUE(is(near_.connect(tcp_ + ",tcp:").status(), Code::invalid_argument, "no port"));
}

TEST_F(EngineAddresses, LeadToPeersThatAreFoundByName_WhoeverConnected) {
  EXPECT_TRUE(is(far_.find_peer("near").status(), Code::not_found, "no Engine \"near\""));
  const Peer to_far = take(near_.connect(far_.addresses()));
  EXPECT_EQ(take(near_.find_peer("far")).id(), to_far.id());
  ASSERT_TRUE(eventually([&] { return far_.peers().size() == 1; }));
  const Peer to_near = take(far_.find_peer("near"));
  EXPECT_EQ(to_near.name(), "near");
  must(to_near.notify(std::as_bytes(std::span("hello", 5))));
  EXPECT_EQ(near_.notifications(10s).size(), 1u);

  Engine again = open("near");
  (void)take(again.connect(far_.addresses()));
  ASSERT_TRUE(eventually([&] { return far_.peers().size() == 2; }));
  EXPECT_GT(take(far_.find_peer("near")).id(), to_near.id()) << "the latest of that name";
  must(again.close(10s));
  ASSERT_TRUE(eventually([&] { return far_.peers().size() == 1; }));
  EXPECT_EQ(take(far_.find_peer("near")).id(), to_near.id());
}

}  // namespace engine_addresses_test
}  // namespace linkspan::test
