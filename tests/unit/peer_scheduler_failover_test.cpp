// Tests a PeerScheduler whose peer has two transports, of which the first fails: what is left of a
// transfer goes on over the second.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/no_memory.hpp"
#include "tests/unit/engine_fixture.hpp"

namespace linkspan::engine {
namespace peer_scheduler_failover_test {

const Status kFailed(Code::unreachable, Scope::transport, "its device has gone away");

class PeerSchedulerFailover : public test::EngineFixture {
 protected:
  PeerSchedulerFailover() {
    auto made = std::make_unique<test::FakeEndpoint>(calls_);
    other_ = made.get();
    scheduler().add_endpoint(1, nullptr, std::move(made));
  }
  PeerScheduler& scheduler() { return *peer_.scheduler; }
  test::FakeEndpoint& first() { return *peer_.endpoint; }
  test::FakeEndpoint& other() { return *other_; }
  void progress() { (void)scheduler().progress(now()); }
  /// Returns a write that both transports may carry, and that notifies.
  Transfer make(std::size_t batches) {
    auto transfer = make_transfer(batches);
    transfer->remote = test::FakeMemory::remote({}, 2);
    transfer->notification.bytes = test::bytes_of("done");
    return transfer;
  }
  Transfer started(std::size_t batches) {
    auto transfer = make(batches);
    test::must(submit(peer_, transfer));
    return transfer;
  }
  std::uint64_t failovers() { return scheduler().metrics().counters.failovers; }

  test::EndpointCalls calls_;
  test::RecordingEvents events_;
  test::FakePeer peer_ = [this] {
    transports_.push_back(std::make_unique<test::FakeTransport>("other", true));
    return make_peer(events_);
  }();
  test::FakeEndpoint* other_ = nullptr;  // the scheduler's
};

TEST_F(PeerSchedulerFailover, MovesWhatIsLeft_WhenATransportFailsInTheMidst) {
  const auto transfer = started(3);
  const auto cookies = first().in_flight();
  first().complete(cookies[0]);
  first().complete(cookies[1], kFailed, "", {{70, 70, 10}, {100, 100, 20}});
  progress();
  EXPECT_FALSE(transfer->quiet);
  ASSERT_EQ(other().posted().size(), 2u) << "it takes one block a batch";
  EXPECT_TRUE(first().canceled().empty()) << "the third may still end well";
  EXPECT_EQ(peer_.session().next_notification(), "");
  first().complete(cookies[2]);
  other().complete_all();
  progress();
  EXPECT_EQ(end_of(*transfer), "ok");
  EXPECT_EQ(transfer->local->users(), 0u);
  EXPECT_EQ(peer_.session().next_notification(), "done");
  EXPECT_EQ(peer_.session().next_notification(), "");
  EXPECT_EQ(failovers(), 1u);
}

TEST_F(PeerSchedulerFailover, MovesWhatWasNotPosted_WhenATransportRefusesIt) {
  first().set_room(1);
  const auto transfer = started(3);
  first().refuse(kFailed);
  first().complete_all();
  progress();
  EXPECT_EQ(other().posted().size(), 2u);
  other().complete_all();
  progress();
  EXPECT_EQ(end_of(*transfer), "ok");
  EXPECT_EQ(failovers(), 2u);
}

TEST_F(PeerSchedulerFailover, SubmitsToTheNext_WhenTheFirstIsGone) {
  first().refuse(kFailed);
  const auto transfer = started(1);
  ASSERT_EQ(other().posted().size(), 1u);
  EXPECT_EQ(other().posted()[0].notification, "") << "it is sent after all that is left";
  other().complete_all();
  progress();
  EXPECT_EQ(end_of(*transfer), "ok");
  EXPECT_EQ(peer_.session().next_notification(), "done");
}

TEST_F(PeerSchedulerFailover, NotifiesAfterWhatIsLeft_WhenTheBatchThatShouldHasFailed) {
  first().carry_notifications();
  const auto transfer = started(1);
  ASSERT_EQ(first().posted()[0].notification, "done");
  first().complete(first().in_flight()[0], kFailed, "", {{0, 0, 10}});
  progress();
  ASSERT_EQ(other().posted().size(), 1u);
  EXPECT_EQ(peer_.session().next_notification(), "");
  other().complete_all();
  progress();
  EXPECT_EQ(end_of(*transfer), "ok");
  EXPECT_EQ(peer_.session().next_notification(), "done");
}

TEST_F(PeerSchedulerFailover, GoesOnLater_WhenTheNextHasNoRoom) {
  other().set_room(0);
  const auto transfer = started(1);
  first().complete(first().in_flight()[0], kFailed, "", {{0, 0, 200}});
  progress();
  EXPECT_TRUE(other().posted().empty());
  other().set_room(1);
  for (int i = 0; i < 4; ++i) {
    progress();
    EXPECT_FALSE(transfer->quiet);
    other().complete_all();
  }
  progress();
  EXPECT_EQ(other().posted().size(), 4u);
  EXPECT_EQ(end_of(*transfer), "ok");
}

TEST_F(PeerSchedulerFailover, EndsTheTransfer_WhereThereIsNoOtherOrItIsNotWanted) {
  auto lone = make_transfer();  // its region has no key of the other transport
  test::must(submit(peer_, lone));
  auto unwilling = make(1);
  unwilling->batches.failover.allowed = false;
  test::must(submit(peer_, unwilling));
  const auto of_request = started(1), canceled = started(1);
  scheduler().cancel(*canceled);
  const auto cookies = first().in_flight();
  const std::vector<Block> left{{0, 0, 10}};
  first().complete(cookies[0], kFailed, "", left);
  first().complete(cookies[1], kFailed, "", left);
  first().complete(cookies[2], {Code::unreachable, Scope::request, "no such region"}, "", left);
  first().complete(cookies[3], kFailed, "", left);
  progress();
  EXPECT_EQ(end_of(*lone), "unreachable");
  EXPECT_EQ(end_of(*unwilling), "unreachable");
  EXPECT_EQ(end_of(*of_request), "unreachable");
  EXPECT_EQ(end_of(*canceled), "canceled");
  EXPECT_TRUE(other().posted().empty());
  EXPECT_EQ(failovers(), 0u);
}

TEST_F(PeerSchedulerFailover, EndsWithTheErrorOfTheLast_WhenAllFail) {
  other().refuse(kFailed);
  first().refuse(kFailed);
  EXPECT_EQ(submit(peer_, make(1)).code(), Code::unreachable);
  EXPECT_EQ(scheduler().unquiet(), 0u);
}

TEST_F(PeerSchedulerFailover, MovesOrEndsEach_WhenThereIsNoMemory) {
  std::vector<Transfer> transfers;
  std::map<std::string, int> ends;
  const auto fail_some = [&] {
    transfers.clear();
    for (int i = 0; i < 5; ++i) transfers.push_back(started(1));
    for (const auto cookie : first().in_flight())
      first().complete(cookie, kFailed, "", {{0, 0, 10}});
  };
  const auto expect_ends = [&] {
    for (int i = 0; i < 2; ++i) {
      other().complete_all();
      progress();
    }
    for (const auto& transfer : transfers) ++ends[end_of(*transfer)];
    EXPECT_EQ(scheduler().unquiet(), 0u);
  };
  fail_some();
  test::fail_each_allocation([&] { progress(); },
                             [&](bool threw) {
                               EXPECT_FALSE(threw);
                               expect_ends();
                               fail_some();
                             });
  progress();
  expect_ends();
  EXPECT_GE(ends["ok"], 5);
  EXPECT_GT(ends["unreachable"] + ends["system"], 5) << "an allocation is missed";
}

TEST_F(PeerSchedulerFailover, CancelsWhatHasMoved) {
  const auto transfer = started(1);
  first().complete(first().in_flight()[0], kFailed, "", {{0, 0, 10}});
  progress();
  ASSERT_EQ(other().in_flight().size(), 1u);
  scheduler().cancel(*transfer);
  EXPECT_EQ(other().canceled(), other().in_flight());
  other().complete_all({Code::canceled, Scope::request, "as asked"});
  progress();
  EXPECT_EQ(end_of(*transfer), "canceled");
}

}  // namespace peer_scheduler_failover_test
}  // namespace linkspan::engine
