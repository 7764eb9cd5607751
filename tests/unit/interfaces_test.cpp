#include "net/interfaces.hpp"

#include <gtest/gtest.h>

#include "tests/support/take.hpp"

namespace linkspan::net {
namespace interfaces_test {

using test::take;

struct Net {
  const char* host;
  unsigned prefix;
};
Interface interface(std::string name, std::initializer_list<Net> nets) {
  Interface out{.name = std::move(name), .at = {}};
  for (const Net& net : nets) out.at.push_back({parse_host(net.host).value(), net.prefix});
  return out;
}
std::vector<net::TcpAddress> hosts(std::initializer_list<const char*> texts) {
  std::vector<net::TcpAddress> out;
  for (const char* text : texts) out.push_back(parse_host(text).value());
  return out;
}
/// Returns the routes of data connections 0 to 5.
std::vector<std::string> ways(const std::vector<Interface>& ours,
                              const std::vector<net::TcpAddress>& theirs) {
  std::vector<std::string> out;
  for (std::uint64_t k = 0; k < 6; ++k) {
    const auto way = choose_route(ours, theirs, k, 4711);
    out.push_back(way ? way->to_string() : "none");
  }
  return out;
}
using Ways = std::vector<std::string>;

TEST(DataConnectionRoutes, TakeTurnsEachInItsOwnSubnet) {
  const std::vector<Interface> ours{interface("eth1", {{"10.0.1.1", 24}}),
                                    interface("eth2", {{"10.0.2.1", 24}})};
  const std::string one = "eth1 (10.0.1.1) to 10.0.1.9:4711",
                    two = "eth2 (10.0.2.1) to 10.0.2.9:4711";
  // The order of the peer's addresses makes no difference.
  EXPECT_EQ(ways(ours, hosts({"10.0.2.9", "10.0.1.9"})), (Ways{one, two, one, two, one, two}));
  EXPECT_EQ(ways(ours, hosts({"10.0.1.9", "10.0.2.9", "10.0.3.9"})),
            (Ways{one, two, one, two, one, two}));
}

TEST(DataConnectionRoutes, ElseTakeTheAddressesOfTheirFamilyInTurn) {
  const std::vector<Interface> ours{interface("eth1", {{"10.0.1.1", 24}}),
                                    interface("eth2", {{"10.0.2.1", 24}})};
  EXPECT_EQ(ways(ours, hosts({"2001:db8::9", "10.8.0.1", "10.8.0.2", "10.8.0.3"})),
            (Ways{"eth1 (10.0.1.1) to 10.8.0.1:4711", "eth2 (10.0.2.1) to 10.8.0.2:4711",
                  "eth1 (10.0.1.1) to 10.8.0.3:4711", "eth2 (10.0.2.1) to 10.8.0.1:4711",
                  "eth1 (10.0.1.1) to 10.8.0.2:4711", "eth2 (10.0.2.1) to 10.8.0.3:4711"}));
  EXPECT_EQ(ways(ours, hosts({"2001:db8::9"})), (Ways(6, "none")));
  EXPECT_EQ(ways(ours, {}), (Ways(6, "none")));
  EXPECT_EQ(ways({}, hosts({"10.0.1.9"})), (Ways(6, "none")));
}

TEST(DataConnectionRoutes, InOneSubnetPairTheInterfacesUp) {
  const std::vector<Interface> ours{interface("eth1", {{"10.0.0.1", 16}}),
                                    interface("eth2", {{"10.0.0.2", 16}})};
  const std::string one = "eth1 (10.0.0.1) to 10.0.1.1:4711",
                    two = "eth2 (10.0.0.2) to 10.0.1.2:4711";
  EXPECT_EQ(ways(ours, hosts({"10.0.1.1", "10.0.1.2"})), (Ways{one, two, one, two, one, two}));
}

TEST(DataConnectionRoutes, LookAtAllAddressesOfAnInterface) {
  const std::vector<Interface> ours{
      interface("eth1", {{"10.0.1.1", 24}, {"2001:db8:1::1", 64}, {"2001:db8:2::1", 64}})};
  EXPECT_EQ(ways(ours, hosts({"10.9.9.9", "2001:db8:2::9"}))[0],
            "eth1 (2001:db8:2::1) to [2001:db8:2::9]:4711");
  EXPECT_EQ(ways(ours, hosts({"2001:db8:2:1::9"}))[0],
            "eth1 (2001:db8:1::1) to [2001:db8:2:1::9]:4711");
}

TEST(DataConnectionRoutes, CountTheBitsOfASubnet) {
  const auto near = [](unsigned prefix, const char* theirs) {
    // Addresses outside our subnets come second.
    return choose_route(std::vector{interface("e", {{"10.0.1.130", prefix}})},
                        hosts({"192.0.2.1", theirs}), 0, 1)
               ->to.host() == theirs;
  };
  EXPECT_TRUE(near(25, "10.0.1.129"));
  EXPECT_FALSE(near(25, "10.0.1.127"));
  EXPECT_TRUE(near(24, "10.0.1.127"));
  EXPECT_FALSE(near(32, "10.0.1.131"));
  EXPECT_TRUE(near(32, "10.0.1.130"));
  EXPECT_TRUE(near(99, "10.0.1.130")) << "more bits than there are";
}

TEST(ParseHost, TakesNumbersByWhichAnotherHostIsReached) {
  for (const char* good : {"10.0.1.2", "1.0.0.0", "223.255.255.255", "2001:db8::1", "fd00::1"})
    EXPECT_EQ(parse_host(good).value().host(), good);
  EXPECT_EQ(parse_host("2001:DB8:0:0::1").value().to_string(), "[2001:db8::1]:0");
  const std::string bad[] = {"",
                             "localhost",
                             "gpu-7",
                             "10.0.1.2:80",
                             "10.0.1",
                             "010.0.1.2",
                             "10.0.1.2 ",
                             " 10.0.1.2",
                             "0x0a.0.0.1",
                             "167772161",
                             "[2001:db8::1]",
                             "2001:db8::1%lo",
                             "169.254.169.254",
                             "64:ff9b::10.0.1.2",
                             "64:ff9b:1::1",
                             "2002:a00:102::1",
                             "fe80::1",
                             "fe80::1%lo",
                             "127.0.0.1",
                             "127.9.9.9",
                             "::1",
                             "0.0.0.0",
                             "0.1.2.3",
                             "::",
                             "::ffff:127.0.0.1",
                             "::ffff:10.0.1.2",
                             "::10.0.1.2",
                             "224.0.0.1",
                             "255.255.255.255",
                             "ff02::1",
                             std::string("10.0.1.2\0", 9),
                             std::string(5000, '1')};
  for (const std::string& text : bad) EXPECT_FALSE(parse_host(text).has_value()) << text;
}

TEST(FindInterfaces, NamesWhatIsWrong) {
  EXPECT_TRUE(take(find_interfaces("", "option")).empty());
  struct {
    const char *names, *word;
    Code code;
  } const bad[] = {{"nowhere0", "\"nowhere0\" is not here; usable are", Code::not_found},
                   {"lo", "\"lo\" has no address by which another host", Code::not_found},
                   {",", "\",\" has an empty name", Code::invalid_argument},
                   {"nowhere0,", "\"nowhere0\" is not here", Code::not_found},
                   {" lo", "\" lo\" is not here", Code::not_found}};
  for (const auto& each : bad) {
    const Status status = find_interfaces(each.names, "option").status();
    EXPECT_EQ(status.code(), each.code) << each.names;
    EXPECT_NE(status.what().find(each.word), std::string::npos) << status.what();
    EXPECT_NE(status.what().find("option"), std::string::npos);
  }
}

}  // namespace interfaces_test
}  // namespace linkspan::net
