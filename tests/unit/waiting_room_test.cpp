#include "control/waiting_room.hpp"

#include <gtest/gtest.h>

#include "tests/support/take.hpp"

namespace linkspan::control {
namespace waiting_room_test {

using Ids = std::vector<std::uint64_t>;

std::string source(const std::string& host) {
  return WaitingRoom::source_of(test::take(net::resolve(host, 1)).front());
}

TEST(WaitingRoom, OfUnixSocketsIsNotThatOfTcp) {
  WaitingRoom room(2, 1);
  room.enter(1, "");
  room.enter(2, "");
  EXPECT_EQ(room.in_the_way(""), (Ids{1, 2}));
  EXPECT_EQ(room.in_the_way("10.0.0.1"), std::nullopt);
}

TEST(WaitingRoom, OfAnAddressIsFullBeforeThatOfAllStrangers) {
  WaitingRoom room(3, 2);
  room.enter(1, "10.0.0.1");
  room.enter(2, "10.0.0.1");
  EXPECT_EQ(room.in_the_way("10.0.0.1"), (Ids{1, 2}));
  EXPECT_EQ(room.in_the_way("10.0.0.2"), std::nullopt);
  room.enter(3, "10.0.0.2");
  EXPECT_EQ(room.in_the_way("10.0.0.3"), (Ids{1, 2, 3}));
  room.leave(1);
  EXPECT_EQ(room.in_the_way("10.0.0.3"), std::nullopt);
  EXPECT_EQ(room.in_the_way("10.0.0.1"), std::nullopt);
}

TEST(WaitingRoom, OfAnAddressWithAPeerIsItsOwn) {
  WaitingRoom room(2, 1);
  room.enter(1, "10.0.0.1");
  room.enter(2, "10.0.0.2");
  room.know("10.0.0.1");
  EXPECT_EQ(room.in_the_way("10.0.0.1"), std::nullopt) << "strangers have filled theirs";
  room.enter(3, "10.0.0.1");
  EXPECT_EQ(room.in_the_way("10.0.0.1"), (Ids{1, 3}));
  EXPECT_EQ(room.in_the_way("10.0.0.3"), (Ids{1, 2}));
  room.forget("10.0.0.1");
  EXPECT_EQ(room.in_the_way("10.0.0.1"), (Ids{1}));
}

TEST(WaitingRoom, TakesANetworkOfIpv6ForOneAddress) {
  EXPECT_EQ(source("2001:db8::1"), source("2001:db8::2"));
  EXPECT_NE(source("2001:db8:0:1::1"), source("2001:db8::1"));
  EXPECT_NE(source("::ffff:10.0.0.1"), source("::ffff:10.0.0.2"));
  EXPECT_NE(source("10.0.0.1"), source("10.0.0.2"));
}

}  // namespace waiting_room_test
}  // namespace linkspan::control
