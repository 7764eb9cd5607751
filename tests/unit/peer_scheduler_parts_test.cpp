// Tests transfers of several pairs of regions in a PeerScheduler, over two Endpoints that the test
// completes.
#include "engine/transfers/peer_scheduler.hpp"
#include "tests/support/held_stream.hpp"
#include "tests/unit/engine_fixture.hpp"

namespace linkspan::engine {
namespace peer_scheduler_parts_test {

using test::take, test::must, test::bytes_of;
using When = transport::PollHint::When;

class PeerSchedulerParts : public test::EngineFixture {
 protected:
  PeerScheduler& scheduler() { return *peer_.scheduler; }
  test::FakeEndpoint& first() { return *peer_.endpoint; }
  test::FakeEndpoint& second() { return *second_; }
  void progress() { scheduler().progress(now()); }

  /// Returns a write of one batch over each of those transports. All parts but the first use
  /// `other_`.
  Transfer make_parts(const std::vector<std::size_t>& transports) {
    Transfer transfer = make_transfer();
    transfer->transport = transports.front();
    transfer->remote = test::FakeMemory::remote({}, 2);
    std::vector<TransferEndpoints> parts = {*transfer};
    TransferBatches& batches = transfer->batches;
    batches.by_pair = {{.plan = &batches.own}};
    for (std::size_t i = 1; i < transports.size(); ++i) {
      parts.push_back(*transfer);
      parts.back().transport = transports[i];
      parts.back().local = other_;
      batches.by_pair.push_back({.plan = &batches.add(Plan(batches.own), transports.size())});
    }
    transfer->local->release();  // the pairs acquire it
    transfer->use(AcquiredPairs::make(std::move(parts)));
    batches.count_all(transports.size());
    return transfer;
  }
  Transfer started(const std::vector<std::size_t>& transports) {
    Transfer transfer = make_parts(transports);
    must(scheduler().submit(transfer));
    return transfer;
  }
  static Status canceled() { return {Code::canceled, Scope::request, "as asked"}; }
  void expect_no_users() {
    EXPECT_EQ(memory_.local->users(), 0u);
    EXPECT_EQ(other_->users(), 0u);
    EXPECT_EQ(scheduler().unquiet(), 0u);
  }

 private:
  test::FakePeer peer_of_two() {
    transports_.push_back(std::make_unique<test::FakeTransport>("another"));
    test::FakePeer peer = make_peer(events_);
    auto made = std::make_unique<test::FakeEndpoint>(calls_);
    second_ = made.get();
    peer.scheduler->add_endpoint(1, nullptr, std::move(made));
    return peer;
  }

  std::vector<std::byte> bytes_ = std::vector<std::byte>(64);
  test::RecordingEvents events_;
  test::EndpointCalls calls_;
  test::FakeEndpoint* second_ = nullptr;  // the scheduler's

 protected:
  test::FakePeer peer_ = peer_of_two();
  const std::shared_ptr<const memory::Registration> other_ =  // also the registry's
      take(registry_.add(bytes_.data(), bytes_.size(), {}, false));
};

TEST_F(PeerSchedulerParts, GoToTheirTransports_AndEndTogether) {
  const auto transfer = started({0, 1, 0});
  EXPECT_EQ(first().posted().size(), 2u);
  EXPECT_EQ(second().posted().size(), 1u);
  first().complete_all();
  progress();
  EXPECT_FALSE(transfer->quiet) << "the other transport may still write";
  EXPECT_EQ(memory_.local->users(), 1u) << "all regions become the user's at once";
  second().complete_all();
  progress();
  EXPECT_EQ(end_of(*transfer), "ok");
  expect_no_users();
}

TEST_F(PeerSchedulerParts, GoInOneBatch_WhereTheEndpointTakesSeveralWithOnePlan) {
  first().join(1);
  const Transfer transfer = make_parts({0, 0, 0, 1, 0, 0});
  for (std::size_t i = 1; i < 5; ++i) transfer->batches.by_pair[i] = transfer->batches.by_pair[0];
  must(scheduler().submit(transfer));
  ASSERT_EQ(first().posted().size(), 4u);
  EXPECT_EQ(first().posted()[0].waiting, 2u) << "the next but one goes by the other transport";
  EXPECT_EQ(first().posted()[1].waiting, 0u);
  EXPECT_EQ(first().posted()[2].waiting, 0u) << "the next has a plan of its own";
  EXPECT_EQ(first().posted()[3].waiting, 0u);
  EXPECT_EQ(second().posted().size(), 1u);
  first().complete_all();
  second().complete_all();
  progress();
  EXPECT_EQ(end_of(*transfer), "ok");
  expect_no_users();
}

TEST_F(PeerSchedulerParts, AreCanceledAtTheirOwnEndpoints) {
  const auto transfer = started({0, 1});
  scheduler().cancel(*transfer);
  EXPECT_EQ(first().canceled(), first().in_flight());
  EXPECT_EQ(second().canceled(), second().in_flight());
  first().complete_all(canceled());
  progress();
  EXPECT_FALSE(transfer->quiet);
  second().complete_all(canceled());
  progress();
  EXPECT_EQ(end_of(*transfer), "canceled");
  expect_no_users();
}

TEST_F(PeerSchedulerParts, PostNoMore_WhenTheCancelComesBetweenTwoPosts) {
  second().set_room(0);
  const auto transfer = started({0, 1, 0});
  EXPECT_EQ(first().posted().size(), 1u);
  scheduler().cancel(*transfer);
  EXPECT_EQ(first().canceled(), first().in_flight());
  EXPECT_FALSE(transfer->quiet);
  second().set_room(1);
  progress();
  first().complete_all();  // it was too late for this one
  progress();
  EXPECT_EQ(first().posted().size(), 1u);
  EXPECT_TRUE(second().posted().empty());
  EXPECT_EQ(end_of(*transfer), "canceled") << "some bytes were not written";
  expect_no_users();
}

TEST_F(PeerSchedulerParts, EndAsTimedOut_WhenTheDeadlinePassesBetweenTwoPosts) {
  second().set_room(0);
  const auto transfer = make_parts({0, 1});
  transfer->ending.deadline = now() + std::chrono::hours(1);
  must(scheduler().submit(transfer));
  scheduler().progress(transfer->ending.deadline);
  EXPECT_EQ(first().canceled(), first().in_flight());
  EXPECT_FALSE(transfer->quiet);
  first().complete_all(canceled());
  progress();
  EXPECT_EQ(end_of(*transfer), "timed_out");
  expect_no_users();
}

TEST_F(PeerSchedulerParts, EndWithTheErrorOfTheRefusedOne_OnceTheOthersAreQuiet) {
  second().refuse({Code::unreachable, Scope::request, "no path"});
  const auto transfer = started({0, 1, 0});
  EXPECT_EQ(first().posted().size(), 1u);
  EXPECT_EQ(first().canceled(), first().in_flight());
  EXPECT_FALSE(transfer->quiet) << "its first part may still write";
  first().complete_all(canceled());
  progress();
  EXPECT_EQ(end_of(*transfer), "unreachable");
  EXPECT_EQ(transfer->end.what(), "pair 1: no path");
  expect_no_users();
}

TEST_F(PeerSchedulerParts, StartNothing_WhenTheFirstIsRefused) {
  first().refuse({Code::unreachable, Scope::request, "no path"});
  const auto transfer = make_parts({0, 1});
  EXPECT_EQ(scheduler().submit(transfer).what(), "pair 0: no path");
  EXPECT_TRUE(second().posted().empty());
  transfer->pairs = {};
  expect_no_users();
}

TEST_F(PeerSchedulerParts, AreCanceledOnEveryTransport_WhenOneFails) {
  const auto transfer = started({0, 1, 1});
  const auto there = second().in_flight();
  second().complete(there[1], {Code::corrupt, Scope::request, "a sum differs"});
  progress();
  EXPECT_EQ(first().canceled(), first().in_flight());
  EXPECT_EQ(second().canceled(), std::vector{there[0]});
  first().complete_all(canceled());
  second().complete_all(canceled());
  progress();
  EXPECT_EQ(end_of(*transfer), "corrupt");
  expect_no_users();
}

TEST_F(PeerSchedulerParts, EndAsDisconnected_WhenThePeerIsGoneBetweenTwoPosts) {
  second().set_room(0);
  const auto transfer = started({0, 1});
  scheduler().on_lost();
  EXPECT_FALSE(transfer->quiet) << "its process lives and may still copy";
  scheduler().on_gone();
  EXPECT_EQ(end_of(*transfer), "disconnected");
  EXPECT_TRUE(second().posted().empty());
  expect_no_users();
}

/// A batch that is posted last may be done before the others.
TEST_F(PeerSchedulerParts, LeaveTheNotificationAndTheEventToTheEndOfAll) {
  first().carry_notifications();
  second().carry_notifications();
  const auto transfer = make_parts({0, 1});
  transfer->notification.bytes = bytes_of("written");
  transfer->streams.wants_release = true;
  must(scheduler().submit(transfer));
  for (test::FakeEndpoint* const each : {&first(), &second()}) {
    ASSERT_EQ(each->posted().size(), 1u);
    EXPECT_EQ(each->posted()[0].notification, "");
    EXPECT_FALSE(each->posted()[0].releases);
  }
  second().complete_all();
  progress();
  EXPECT_EQ(peer_.session().next_notification(), "");
  first().complete_all();
  progress();
  EXPECT_EQ(end_of(*transfer), "ok");
  EXPECT_EQ(peer_.session().next_notification(), "written");
  EXPECT_EQ(peer_.session().next_notification(), "") << "it came twice";
}

TEST_F(PeerSchedulerParts, AreCanceledTogether_WhenTheMemoryOfALaterOneGoes) {
  const auto transfer = started({0, 1}), kept = started({0});
  scheduler().cancel_all_on(*other_);
  EXPECT_TRUE(transfer->ending.canceled);
  EXPECT_FALSE(kept->ending.canceled);
  EXPECT_EQ(second().canceled(), second().in_flight());
  EXPECT_EQ(registry_.remove(other_->id()).code(), Code::busy);
  first().complete_all();
  second().complete_all(canceled());
  progress();
  EXPECT_EQ(end_of(*transfer), "canceled");
  must(registry_.remove(other_->id()));
}

/// The first transport waits in a stream of its own for the user's; the second cannot.
class PeerSchedulerPartsOnDevice : public PeerSchedulerParts {
 protected:
  void SetUp() override {
    if (const Status status = test::need_gpus(1); !status.ok()) GTEST_SKIP() << status.to_string();
    stream_.emplace();
    stream_->hold();
    second().refuse({Code::unsupported, Scope::request, "no GPU of this process copies it"});
  }
  /// Starts a part over each transport, after the stream.
  Transfer started_after_stream() {
    const auto transfer = make_parts({0, 1});
    const cuda::Device* const device =
        take(test::topology()->activate(test::topology()->devices()[0].uuid));
    const cuda::DeviceScope scope = take(device->enter());
    auto* const handle = static_cast<cuda::CUstream>(stream_->order().handle);
    auto mark = take(device->events().acquire());
    must(mark->record(scope, handle));
    transfer->streams.after = {.device = device, .handle = handle, .key = 1};
    transfer->streams.mark.emplace(std::move(mark));
    must(scheduler().submit(transfer));
    EXPECT_EQ(first().posted().size(), 1u);
    EXPECT_TRUE(second().posted().empty());
    return transfer;
  }

  std::optional<test::HeldStream> stream_;
};

TEST_F(PeerSchedulerPartsOnDevice, GoOn_WhenTheStreamHasReachedTheMark) {
  const auto transfer = started_after_stream();
  second().refuse({});
  first().complete_all();
  progress();
  EXPECT_TRUE(second().posted().empty()) << "the stream has not come so far";
  EXPECT_FALSE(transfer->quiet);
  stream_->go_on();
  const auto limit = base::Deadline::in(std::chrono::seconds(10));
  while (second().posted().empty() && !limit.passed()) progress();
  second().complete_all();
  progress();
  EXPECT_EQ(end_of(*transfer), "ok");
  expect_no_users();
}

TEST_F(PeerSchedulerPartsOnDevice, LeaveNothingToPoll_WhenOneFailsWhileAnotherWaits) {
  const auto transfer = started_after_stream();
  first().complete_all({Code::cuda, Scope::request, "the copy failed"});
  progress();
  EXPECT_EQ(end_of(*transfer), "cuda");
  progress();
  EXPECT_EQ(scheduler().poll(now()).hint.when, When::idle) << "a thread would spin for ever";
  EXPECT_TRUE(second().posted().empty());
  expect_no_users();
}

}  // namespace peer_scheduler_parts_test
}  // namespace linkspan::engine
