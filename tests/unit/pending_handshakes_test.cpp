#include "control/pending_handshakes.hpp"

#include <gtest/gtest.h>

#include "tests/support/take.hpp"

namespace linkspan::control {
namespace pending_handshakes_test {

using Ids = std::vector<std::uint64_t>;

std::string source(const std::string& host) {
  return PendingHandshakes::source_of(test::take(net::resolve(host, 1)).front());
}

TEST(PendingHandshakes, OfUnixSocketsIsNotThatOfTcp) {
  PendingHandshakes room(2, 1);
  room.add(1, "");
  room.add(2, "");
  EXPECT_EQ(room.eviction_candidates(""), (Ids{1, 2}));
  EXPECT_EQ(room.eviction_candidates("10.0.0.1"), std::nullopt);
}

TEST(PendingHandshakes, OfAnAddressIsFullBeforeThatOfAllStrangers) {
  PendingHandshakes room(3, 2);
  room.add(1, "10.0.0.1");
  room.add(2, "10.0.0.1");
  EXPECT_EQ(room.eviction_candidates("10.0.0.1"), (Ids{1, 2}));
  EXPECT_EQ(room.eviction_candidates("10.0.0.2"), std::nullopt);
  room.add(3, "10.0.0.2");
  EXPECT_EQ(room.eviction_candidates("10.0.0.3"), (Ids{1, 2, 3}));
  room.remove(1);
  EXPECT_EQ(room.eviction_candidates("10.0.0.3"), std::nullopt);
  EXPECT_EQ(room.eviction_candidates("10.0.0.1"), std::nullopt);
}

TEST(PendingHandshakes, OfAnAddressWithAPeerIsItsOwn) {
  PendingHandshakes room(2, 1);
  room.add(1, "10.0.0.1");
  room.add(2, "10.0.0.2");
  room.add_peer("10.0.0.1");
  EXPECT_EQ(room.eviction_candidates("10.0.0.1"), std::nullopt) << "strangers have filled theirs";
  room.add(3, "10.0.0.1");
  EXPECT_EQ(room.eviction_candidates("10.0.0.1"), (Ids{1, 3}));
  EXPECT_EQ(room.eviction_candidates("10.0.0.3"), (Ids{1, 2}));
  room.remove_peer("10.0.0.1");
  EXPECT_EQ(room.eviction_candidates("10.0.0.1"), (Ids{1}));
}

TEST(PendingHandshakes, EvictsTheOldestSilentOneElseASlowOne) {
  const base::Time now = base::Clock::steady().now();
  PendingHandshakes room(2, 2);
  room.add(1, "", now);
  room.add(2, "", now - std::chrono::seconds(2));
  std::uint64_t evicted = 0;
  const auto evict = [&](std::uint64_t id, const Status& why) {
    evicted = id;
    EXPECT_EQ(why.what(), "2 handshakes are under way here, and this one made room: try again");
  };
  EXPECT_TRUE(room.make_room(
                      "", [](std::uint64_t) { return true; }, evict)
                  .ok());
  EXPECT_EQ(evicted, 1U);
  EXPECT_TRUE(room.make_room(
                      "", [](std::uint64_t) { return false; }, evict)
                  .ok());
  EXPECT_EQ(evicted, 2U);
  room.remove(2);
  room.add(3, "", now);
  EXPECT_EQ(room.make_room(
                    "", [](std::uint64_t) { return false; }, evict)
                .what(),
            "2 handshakes are under way here, which is all that it takes: try again");
  EXPECT_EQ(evicted, 2U);
}

TEST(PendingHandshakes, TakesANetworkOfIpv6ForOneAddress) {
  EXPECT_EQ(source("2001:db8::1"), source("2001:db8::2"));
  EXPECT_NE(source("2001:db8:0:1::1"), source("2001:db8::1"));
  EXPECT_NE(source("::ffff:10.0.0.1"), source("::ffff:10.0.0.2"));
  EXPECT_NE(source("10.0.0.1"), source("10.0.0.2"));
}

}  // namespace pending_handshakes_test
}  // namespace linkspan::control
