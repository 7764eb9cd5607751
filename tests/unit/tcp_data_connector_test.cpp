// Tests how data connections to a peer are requested: how many, how often after a refusal, and when
// the peer is dropped.
#include "transport/tcp/data_connector.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "tests/unit/tcp_connection_group_fixture.hpp"

namespace linkspan::transport::tcp {
namespace tcp_data_connector_test {

/// Counts the requests. Returns `refusal` for each.
class CountingChannel final : public PeerChannel {
 public:
  explicit CountingChannel(bool asks) : asks_(asks) {}
  bool connects() const noexcept override { return asks_; }
  Status open_data_connection() override { return ++asked, refusal; }

  unsigned asked = 0;
  Status refusal;

 private:
  const bool asks_;
};

Status refused(Code code = Code::unreachable) {
  return {code, Scope::peer, "nobody listens at 10.0.0.1"};
}

/// Time is what the test says.
class Connecting {
 public:
  explicit Connecting(unsigned first, bool connects = true, Status refusal = {})
      : channel(connects) {
    channel.refusal = std::move(refusal);
    made_ = std::make_unique<DataConnector>(channel, group, first,
                                            base::Deadline::after(clock, 10s), clock);
  }
  DataConnector* operator->() { return made_.get(); }
  base::Time now() const { return clock.now(); }
  /// Lets the time pass in steps of 10 ms, with a retry after each.
  void pass(Duration time) {
    for (Duration step = 0ms; step < time; step += 10ms) {
      clock.advance(10ms);
      made_->retry(now());
    }
  }
  /// Returns the time until the next request, which is refused; 0 if none comes within a minute.
  Duration until_refused_again() {
    const unsigned before = channel.asked;
    for (Duration step = 10ms; step < 60s; step += 10ms) {
      pass(10ms);
      if (channel.asked == before) continue;
      made_->on_refused(refused(), now());
      return step;
    }
    return 0s;
  }
  std::string failure() const { return group.has_failed() ? group.failure()->what() : ""; }

  base::FakeClock clock;
  CountingChannel channel;
  WireRegionTable published{nullptr};
  ConnectionGroup group{ConnectionGroupOptions{.published = &published}};

 private:
  std::unique_ptr<DataConnector> made_;
};

TEST(TcpDataConnector, AsksForTheFirstOnes_OnlyWhereThisSideConnects) {
  Connecting ours(3), theirs(3, false);
  EXPECT_EQ(ours.channel.asked, 3u);
  EXPECT_EQ(theirs.channel.asked, 0u);
  theirs.pass(9s);
  EXPECT_EQ(theirs.channel.asked, 0u);
  EXPECT_EQ(ours->connections(), 0u);
  ours->on_connected();
  theirs->on_connected();
  EXPECT_EQ(ours->connections(), 1u);
  EXPECT_EQ(theirs->connections(), 1u);
}

TEST(TcpDataConnector, FailsTheGroup_WhenItCannotEvenAsk) {
  const Connecting none(2, true, {Code::disconnected, Scope::peer, "the connection is closed"});
  EXPECT_EQ(none.failure(), "the connection is closed");
}

TEST(TcpDataConnector, AsksAgainAtGrowingIntervals_WhenItIsRefused) {
  Connecting more(2);
  more->on_connected();  // else the peer would be dropped after 10 s
  more->on_refused(refused(), more.now());
  Duration expected = DataConnector::kFirstPause;
  for (unsigned i = 0; i < DataConnector::kTries; ++i) {
    EXPECT_EQ(more.until_refused_again(), expected) << i;
    expected = std::min(2 * expected, DataConnector::kLastPause);
  }
  EXPECT_EQ(more.until_refused_again(), 0s) << "one is enough after that many attempts";
  EXPECT_TRUE(more.failure().empty());
}

TEST(TcpDataConnector, AsksForAllThatAreMissing_AtOneTime) {
  Connecting four(4);
  four->on_connected();
  for (int i = 0; i < 2; ++i) four->on_refused(refused(), four.now());
  four.pass(DataConnector::kFirstPause);
  EXPECT_EQ(four.channel.asked, 6u) << "the fourth is still awaited";
  for (int i = 0; i < 3; ++i) four->on_connected();
  four.pass(60s);
  EXPECT_EQ(four.channel.asked, 6u);
}

TEST(TcpDataConnector, ForgetsARefusal_WhenAllOfTheFirstAreThere) {
  Connecting two(2);
  for (int i = 0; i < 2; ++i) two->on_connected();
  two->on_refused(refused(), two.now());  // of one that the rate has asked for
  EXPECT_EQ(two->next_retry(two.now()), base::Time::max());
  two.pass(60s);
  EXPECT_EQ(two.channel.asked, 2u);
}

TEST(TcpDataConnector, TriesNoMore_WhenARefusalIsFinal) {
  for (const Code code : {Code::permission_denied, Code::unsupported, Code::corrupt}) {
    Connecting two(2);
    two->on_refused(refused(code), two.now());
    EXPECT_TRUE(two.failure().empty()) << "the other one may come";
    two->on_refused(refused(code), two.now());
    EXPECT_EQ(two.failure(), refused().what());
    EXPECT_EQ(two.group.failure()->code(), code);

    Connecting with_one(2);
    with_one->on_connected();
    with_one->on_refused(refused(code), with_one.now());
    with_one.pass(60s);
    EXPECT_EQ(with_one.channel.asked, 2u);
    EXPECT_TRUE(with_one.failure().empty());
  }
}

TEST(TcpDataConnector, DropsThePeerWithTheLastReason_WhenItHasNoConnectionInTime) {
  Connecting one(1);
  one->on_refused(refused(), one.now());
  while (one.now() < base::Time{10s} - 10ms) {
    one.pass(10ms);
    if (one.channel.asked > 1) one->on_refused(refused(), one.now());
  }
  EXPECT_FALSE(one->is_overdue());
  EXPECT_TRUE(one.failure().empty());
  one.pass(10ms);
  EXPECT_TRUE(one->is_overdue());
  EXPECT_EQ(one.failure(),
            "no data connection to peer played was made in time; the last try: nobody listens at "
            "10.0.0.1");
  EXPECT_EQ(one.group.failure()->code(), Code::unreachable);
  const unsigned asked = one.channel.asked;
  one.pass(60s);
  EXPECT_EQ(one.channel.asked, asked) << "it has failed";
}

TEST(TcpDataConnector, TimesOut_WhenNothingWasRefusedOrThePeerIsFull) {
  Connecting silent(1), full(1);
  EXPECT_EQ(silent->timeout().code(), Code::timed_out);
  EXPECT_EQ(silent->timeout().what(), "no data connection to peer played was made in time");
  full->on_refused(refused(Code::no_resource), full.now());
  EXPECT_EQ(full->timeout().code(), Code::timed_out);
  EXPECT_EQ(full->timeout().scope(), Scope::peer);
}

/// That side knows no reason, so the other one reports first.
TEST(TcpDataConnector, DropsThePeerLater_WhereTheOtherSideConnects) {
  Connecting theirs(1, false);
  theirs.pass(10s);
  EXPECT_TRUE(theirs->is_overdue()) << "batches are refused";
  theirs.pass(DataConnector::kDropsLater - 10ms);
  EXPECT_TRUE(theirs.failure().empty());
  theirs.pass(10ms);
  EXPECT_EQ(theirs.failure(), "no data connection to peer played was made in time");
}

TEST(TcpDataConnector, IsNeverOverdue_WhenItHasAConnection) {
  Connecting one(1), theirs(1, false);
  one->on_connected();
  theirs->on_connected();
  one.pass(60s);
  theirs.pass(60s);
  EXPECT_FALSE(one->is_overdue() || theirs->is_overdue());
  EXPECT_TRUE(one.failure().empty() && theirs.failure().empty());
}

TEST(TcpDataConnector, SaysWhenItsNextRetryIs) {
  Connecting two(2);
  EXPECT_EQ(two->next_retry(two.now()), two.now() + 10s) << "the end of its time";
  two->on_refused(refused(), two.now());
  EXPECT_EQ(two->next_retry(two.now()), two.now() + DataConnector::kFirstPause);
  two->on_connected();
  EXPECT_EQ(two->next_retry(two.now()), two.now() + DataConnector::kFirstPause);
  two.pass(DataConnector::kFirstPause);
  EXPECT_EQ(two.channel.asked, 3u);
  EXPECT_EQ(two->next_retry(two.now()), base::Time::max()) << "it waits for the answer";
}

/// A request that is refused at once must not be made again at once.
TEST(TcpDataConnector, WaitsAgain_WhenARetryIsRefusedAtOnce) {
  Connecting two(2);
  two->on_connected();
  two->on_refused(refused(), two.now());
  two.channel.refusal = refused(Code::no_resource);
  two.pass(DataConnector::kFirstPause);
  EXPECT_EQ(two.channel.asked, 3u);
  EXPECT_EQ(two->next_retry(two.now()), two.now() + 2 * DataConnector::kFirstPause);
}

}  // namespace tcp_data_connector_test
}  // namespace linkspan::transport::tcp
