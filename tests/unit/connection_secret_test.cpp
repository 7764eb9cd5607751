// Tests ConnectOptions::secret between Engines: what goes by such a connection, and what is
// refused.
#include <algorithm>
#include <array>
#include <string>

#include "tests/unit/engine_pair.hpp"

namespace linkspan::test {
namespace connection_secret_test {

constexpr const char* kSecret = "a secret of the tests";
constexpr const char* kOther = "another secret of tests";
constexpr std::size_t kBytes = std::size_t{1} << 20;

struct Case {
  const char* name;
  const char* own;                    // the connecting Engine's secret
  std::optional<Security> near, far;  // of the Engines
};

Engine open(const char* name, const std::string& secret, std::optional<Security> security = {}) {
  return take(
      Engine::open({.name = name, .use_gpu = false, .security = security, .secret = secret}));
}

class ConnectionSecret : public ::testing::Test {
 protected:
  static Status refused(Engine& from, const std::string& address, const std::string& secret) {
    const Status status = from.connect(address, {.timeout = 10s, .secret = secret}).status();
    EXPECT_FALSE(contains(status.what(), secret)) << status.what();
    return status;
  }
};

class ConnectionSecretOf : public ConnectionSecret, public ::testing::WithParamInterface<Case> {};

TEST_P(ConnectionSecretOf, CarriesTransfersBothWaysAndAgain) {
  const Case& with = GetParam();
  std::array<std::vector<unsigned char>, 2> memory;
  for (auto& each : memory) each.resize(kBytes);
  Engine there = open("there", kSecret, with.far), here = open("here", with.own, with.near);
  must(there.listen("tcp:127.0.0.1:0"));
  const Region local = take(here.register_memory(memory[0].data(), kBytes));
  const Region remote = take(there.register_memory(memory[1].data(), kBytes));
  must(here.publish("here", local));
  must(there.publish("there", remote));
  for (unsigned char round = 1; round <= 2; ++round) {  // also after the end of the first one
    Peer peer = take(here.connect(there.address(), {.timeout = 10s, .secret = kSecret}));
    const Peer back = take(there.accept(10s));
    const auto fill = [&](std::size_t which, unsigned add) {
      for (std::size_t i = 0; i < kBytes; ++i)
        memory[which][i] = static_cast<unsigned char>(i * 7 + i / 256 + round + add);
    };
    constexpr Block kAll{0, 0, kBytes};
    const RemoteRegion theirs = take(peer.lookup("there")), ours = take(back.lookup("here"));
    fill(0, 0);
    must(take(peer.write(local, theirs, std::span(&kAll, 1), {.require = "tcp"})).wait(10s));
    EXPECT_TRUE(memory[0] == memory[1]);
    fill(1, 100);
    must(take(back.write(remote, ours, std::span(&kAll, 1), {.require = "tcp"})).wait(10s));
    EXPECT_TRUE(memory[0] == memory[1]);
    const auto how = take(peer.explain(Op::write, local, theirs, 1, kBytes));
    EXPECT_EQ(contains(how.reason, "TLS"), with.near == Security::encrypted) << how.reason;
    must(peer.close(10s));
  }
  EXPECT_TRUE(is(here.connect(there.address()).status(), Code::permission_denied, "secret"));
}

INSTANTIATE_TEST_SUITE_P(
    By, ConnectionSecretOf,
    ::testing::Values(Case{"AnEngineWithoutAny", "", {}, {}},
                      Case{"AnEngineThatStaysOnItsHost", "", Security::loopback_only, {}},
                      Case{"AnEngineWithAnother", kOther, {}, {}},
                      Case{"Tls", kOther, Security::encrypted, Security::encrypted}),
    [](const auto& with) { return std::string(with.param.name); });

TEST_F(ConnectionSecret, HasFrom16To4096Bytes) {
  Engine there = open("there", kSecret), here = open("here", "");
  must(there.listen());
  EXPECT_TRUE(is(refused(here, there.address(), "fifteen bytes ."), Code::invalid_argument,
                 "ConnectOptions::secret has 15 bytes: make one of 16 to 4096"));
  EXPECT_TRUE(is(refused(here, there.address(), std::string(4097, 's')), Code::invalid_argument,
                 "ConnectOptions::secret has more than 4096 bytes"));
  must(there.listen("tcp:127.0.0.1:0"));
  for (const std::size_t bytes : {16u, 4096u})
    EXPECT_TRUE(is(refused(here, there.address(), std::string(bytes, 's')), Code::permission_denied,
                   "; connected with ConnectOptions::secret"));
}

TEST_F(ConnectionSecret, ContradictsAnInsecureEngine) {
  Engine there = open("there", kSecret), here = open("here", "", Security::insecure);
  must(there.listen("tcp:127.0.0.1:0"));
  EXPECT_TRUE(is(refused(here, there.address(), kSecret), Code::invalid_argument,
                 "ConnectOptions::secret contradicts security=\"insecure\""));
}

TEST_F(ConnectionSecret, IsRefusedByAnEngineWithAnotherOrNone) {
  Engine another = open("another", kOther), none = open("none", ""), here = open("here", kOther);
  must(another.listen("tcp:127.0.0.1:0"));
  must(none.listen("tcp:127.0.0.1:0"));
  EXPECT_TRUE(is(refused(here, another.address(), kSecret), Code::permission_denied,
                 "; connected with ConnectOptions::secret"));
  EXPECT_TRUE(is(refused(here, none.address(), kSecret), Code::permission_denied,
                 "the peer has no secret"));
  EXPECT_TRUE(is(here.connect(another.address()).status(), Code::ok));
}

TEST_F(ConnectionSecret, CountsForTheTcpAddressesOfSeveral) {
  Engine there = open("there", kSecret), here = open("here", "");
  must(there.listen());
  must(there.listen("tcp:127.0.0.1:0"));
  const std::string all = there.addresses(), tcp = all.substr(all.find("tcp:"));
  EXPECT_TRUE(is(here.connect(all, {.secret = kOther}).status(), Code::ok));
  EXPECT_TRUE(
      is(refused(here, "unix:/nonexistent/socket" + tcp.substr(tcp.find('#')) + "," + tcp, kOther),
         Code::permission_denied, "; connected with ConnectOptions::secret"));
  EXPECT_TRUE(is(here.connect(tcp, {.secret = kSecret}).status(), Code::ok));
}

TEST_F(ConnectionSecret, GoesBeyondLoopback) {
  Engine here = open("here", "");
  constexpr const char* kNobody = "tcp:192.0.2.1:4711";  // of documents (RFC 5737)
  const Status without = here.connect(kNobody, 50ms).status();
  EXPECT_TRUE(is(without, Code::permission_denied, "or connect with ConnectOptions::secret"));
  const Status with = here.connect(kNobody, {.timeout = 50ms, .secret = kSecret}).status();
  EXPECT_TRUE(is(with, Code::unreachable) || is(with, Code::timed_out)) << with.to_string();
}

}  // namespace connection_secret_test
}  // namespace linkspan::test
