// Tests a PeerScheduler over an Endpoint that the test completes: what it posts, when a transfer is
// quiet and as what it ends.
#include "engine/transfers/peer_scheduler.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <thread>

#include "engine/registration/unregistered_buffers.hpp"
#include "tests/support/no_memory.hpp"
#include "tests/unit/engine_fixture.hpp"

namespace linkspan::engine {
namespace peer_scheduler_test {

using namespace std::chrono_literals;
using control::FrameOp;
using test::take, test::must, test::bytes_of;
using When = transport::PollHint::When;

class PeerSchedulerTest : public test::EngineFixture {
 protected:
  std::size_t progress() { return scheduler().progress(now()); }
  PeerScheduler& scheduler() { return *peer_.scheduler; }
  test::FakeEndpoint& endpoint() { return *peer_.endpoint; }
  /// Submits a transfer that must be accepted.
  Transfer started(std::size_t batches = 1) {
    auto transfer = make_transfer(batches);
    must(submit(peer_, transfer));
    return transfer;
  }
  /// Returns a transfer that writes and then notifies.
  Transfer notifying(std::string_view text, std::size_t batches = 1) {
    auto transfer = make_transfer(batches);
    transfer->notification.bytes = bytes_of(text);
    must(submit(peer_, transfer));
    return transfer;
  }
  /// Returns a transfer of a batch for each page.
  Transfer make_transfer_of_pages(std::span<const std::uint32_t> index) {
    auto transfer = make_transfer(1);
    transfer->batches.own =
        make_plan(Pages{.page_bytes = 1, .local_index = index, .remote_index = index},
                  {.max_batch_bytes = index.size(), .max_batch_blocks = 1, .max_batch_pages = 1});
    transfer->batches.count_all(1);
    return transfer;
  }
  /// Completes all that is in flight, and what that makes room for.
  void complete_all() {
    for (bool any = true; any; progress()) {
      any = !endpoint().in_flight().empty();
      endpoint().complete_all();
    }
  }

  test::RecordingEvents events_;
  test::FakePeer peer_ = make_peer(events_);
};

TEST_F(PeerSchedulerTest, PostsEachBatch_WhenThereIsRoom) {
  const auto transfer = started(3);
  EXPECT_EQ(transfer->id, 1u);
  ASSERT_EQ(endpoint().posted().size(), 3u);
  EXPECT_EQ(endpoint().posted()[0].op, Op::write);
  EXPECT_EQ(endpoint().posted()[0].blocks, 1u);
  EXPECT_EQ(progress(), 0u);
  EXPECT_FALSE(transfer->quiet);
}

/// Copying lists of 800 KB took as long as half of the transfer.
TEST_F(PeerSchedulerTest, CopiesTheUsersPageLists_OnlyWhereBatchesWait) {
  const std::uint32_t index[] = {0, 1, 2};
  const auto submitted = [&](std::size_t room) {
    auto transfer = make_transfer_of_pages(index);
    endpoint().set_room(room);
    must(submit(peer_, transfer));
    return transfer;
  };
  const auto room_for_all = submitted(3);
  EXPECT_EQ(endpoint().posted().size(), 3u);
  EXPECT_TRUE(room_for_all->batches.own.kept.empty());
  complete_all();
  const auto room_for_two = submitted(2);
  EXPECT_EQ(endpoint().posted().size(), 5u);
  EXPECT_EQ(room_for_two->batches.own.kept, (std::vector<std::uint32_t>{0, 1, 2, 0, 1, 2}));
  complete_all();
  EXPECT_EQ(end_of(*room_for_two), "ok");
}

TEST_F(PeerSchedulerTest, ReadsNoPageListOfASubmissionThatFailed) {
  const std::uint32_t index[] = {0, 1, 2};
  for (const std::size_t room : {std::size_t{0}, std::size_t{1}}) {
    endpoint().set_room(room);
    Status status;
    Transfer transfer;
    test::fail_each_allocation(
        [&] {
          status = {};
          transfer = make_transfer_of_pages(index);
          status = scheduler().submit(transfer);
        },
        [&](bool threw) {
          const bool refused = threw || !status.ok();
          const std::size_t posted = endpoint().posted().size();
          endpoint().set_room(1000);
          progress();
          complete_all();
          const bool began = !refused && end_of(*transfer) == "ok";
          EXPECT_TRUE(began || endpoint().posted().size() == posted) << "the lists are the user's";
          if (refused && transfer != nullptr) transfer->local->release();
          endpoint().set_room(room);
        });
    EXPECT_EQ(end_of(*transfer), "ok");
    EXPECT_EQ(memory_.local->users(), 0u);
  }
}

TEST_F(PeerSchedulerTest, MakesATransferQuietOnce_WhenEachBatchHasCompleted) {
  const auto transfer = started(2);
  endpoint().complete(endpoint().in_flight().back());
  EXPECT_EQ(progress(), 0u);
  EXPECT_FALSE(transfer->quiet) << "one batch may still write";
  EXPECT_EQ(transfer->local->users(), 1u);
  EXPECT_EQ(events_.quiet, 0u);
  endpoint().complete_all();
  EXPECT_EQ(progress(), 1u);
  EXPECT_EQ(end_of(*transfer), "ok");
  EXPECT_EQ(transfer->local->users(), 0u) << "its memory is the user's again";
  EXPECT_EQ(transfer->batches.path_taken.path, "fake");
  EXPECT_EQ(events_.quiet, 1u);
  EXPECT_EQ(progress(), 0u);
  EXPECT_EQ(scheduler().unquiet(), 0u);
}

TEST_F(PeerSchedulerTest, ReportsThePathOfTheCompletion_WhereItHasOne) {
  const auto transfer = started(2);
  const auto cookies = endpoint().in_flight();
  EXPECT_EQ(transfer->batches.path_taken.path, "fake");
  endpoint().complete(cookies[0], {}, "another");
  endpoint().complete(cookies[1]);
  progress();
  EXPECT_EQ(end_of(*transfer), "ok");
  EXPECT_EQ(transfer->batches.path_taken.path, "another");
}

TEST_F(PeerSchedulerTest, QueuesTheRest_BeyondTheRoomOfTheEndpoint) {
  endpoint().set_room(2);
  const auto first = started(3);
  const auto second = started(1);
  EXPECT_EQ(endpoint().posted().size(), 2u);
  EXPECT_EQ(scheduler().metrics().outstanding, 2u);
  EXPECT_EQ(scheduler().metrics().queued, 2u);
  complete_all();
  EXPECT_EQ(endpoint().posted().size(), 4u);
  EXPECT_EQ(end_of(*first), "ok");
  EXPECT_EQ(end_of(*second), "ok");
  EXPECT_EQ(scheduler().metrics().queued, 0u);
}

TEST_F(PeerSchedulerTest, PostsAgainByProgress_WhenTheEndpointHadNoResource) {
  endpoint().set_room(0);
  const auto transfer = started(1);
  EXPECT_EQ(progress(), 0u);
  EXPECT_TRUE(endpoint().posted().empty());
  endpoint().set_room(1);
  progress();
  EXPECT_EQ(endpoint().posted().size(), 1u);
  complete_all();
  EXPECT_EQ(end_of(*transfer), "ok");
}

TEST_F(PeerSchedulerTest, ReturnsTheErrorAndStartsNothing_WhenTheFirstBatchIsRefused) {
  endpoint().refuse({Code::permission_denied, Scope::request, "not there"});
  EXPECT_EQ(submit(peer_, make_transfer()).code(), Code::permission_denied);
  EXPECT_EQ(scheduler().unquiet(), 0u);
  EXPECT_EQ(events_.quiet, 0u);
}

TEST_F(PeerSchedulerTest, EndsTheTransferWithTheError_WhenALaterBatchIsRefused) {
  endpoint().set_room(1);
  const auto transfer = started(3);
  endpoint().refuse({Code::unreachable, Scope::peer, "no path"});
  endpoint().complete_all();
  EXPECT_EQ(progress(), 1u);
  EXPECT_EQ(end_of(*transfer), "unreachable");
}

TEST_F(PeerSchedulerTest, EndsWithTheFirstErrorAndCancelsTheRest_WhenABatchFails) {
  const auto transfer = started(3);
  const auto cookies = endpoint().in_flight();
  endpoint().complete(cookies[1], {Code::corrupt, Scope::request, "a sum differs"});
  progress();
  EXPECT_FALSE(transfer->quiet);
  EXPECT_EQ(endpoint().canceled(), (std::vector{cookies[0], cookies[2]}));
  endpoint().complete_all({Code::canceled, Scope::request, "as asked"});
  progress();
  EXPECT_EQ(end_of(*transfer), "corrupt");
}

TEST_F(PeerSchedulerTest, RefusesATransfer_OfATransportThatThePeerLacks) {
  transports_.push_back(std::make_unique<test::FakeTransport>("another"));
  auto peer = make_peer(events_);
  auto transfer = make_transfer();
  transfer->transport = 1;
  EXPECT_EQ(submit(peer, transfer).code(), Code::unreachable);
}

TEST_F(PeerSchedulerTest, AnswersNoResource_BeyondTheMaximumOfTransfers) {
  endpoint().set_room(0);
  for (std::size_t i = 0; i < PeerScheduler::kMaxTransfers; ++i) started();
  EXPECT_EQ(submit(peer_, make_transfer()).code(), Code::no_resource);
  endpoint().set_room(PeerScheduler::kMaxTransfers);
  endpoint().complete_each();
  EXPECT_EQ(progress() + progress(), PeerScheduler::kMaxTransfers);
  EXPECT_EQ(memory_.local->users(), 0u);
}

TEST_F(PeerSchedulerTest, StartsNothing_WhenMemoryEndsInASubmission) {
  for (const std::size_t room : {std::size_t{0}, std::size_t{1}, std::size_t{1000}}) {
    endpoint().set_room(room);
    Transfer transfer = make_transfer(2);
    Status status;
    test::fail_each_allocation([&] { status = scheduler().submit(transfer); },
                               [&](bool threw) {
                                 if (!threw && status.ok()) return;
                                 ASSERT_EQ(scheduler().unquiet(), 0u);
                                 ASSERT_TRUE(endpoint().in_flight().empty())
                                     << "a batch of a transfer that its user does not have";
                                 transfer->local->release();
                                 transfer = make_transfer(2);
                               });
    endpoint().set_room(1000);
    progress();
    complete_all();
    EXPECT_EQ(end_of(*transfer), "ok");
    EXPECT_EQ(memory_.local->users(), 0u);
  }
}

TEST_F(PeerSchedulerTest, EndsAsCanceledOnlyAfterTheCompletion_WhenItIsCanceled) {
  const auto transfer = started(1);
  scheduler().cancel(*transfer);
  EXPECT_EQ(endpoint().canceled(), endpoint().in_flight());
  EXPECT_FALSE(transfer->quiet) << "the Endpoint may still write";
  EXPECT_EQ(transfer->local->users(), 1u);
  endpoint().complete_all({Code::canceled, Scope::request, "as asked"});
  progress();
  EXPECT_EQ(end_of(*transfer), "canceled");
}

TEST_F(PeerSchedulerTest, PostsNoMoreBatches_WhenItIsCanceled) {
  endpoint().set_room(1);
  const auto transfer = started(3);
  scheduler().cancel(*transfer);
  endpoint().set_room(3);
  endpoint().complete_all();  // it was too late for this one
  progress();
  EXPECT_EQ(endpoint().posted().size(), 1u);
  EXPECT_EQ(end_of(*transfer), "canceled") << "some bytes were not written";
}

TEST_F(PeerSchedulerTest, EndsWell_WhenTheCancelCameTooLate) {
  const auto transfer = started(2);
  scheduler().cancel(*transfer);
  complete_all();
  EXPECT_EQ(end_of(*transfer), "ok");
}

TEST_F(PeerSchedulerTest, EndsAtOnce_WhenNoBatchOfTheCanceledWasPosted) {
  endpoint().set_room(1);
  const auto first = started(), second = started();
  scheduler().cancel(*second);
  EXPECT_EQ(end_of(*second), "canceled");
  EXPECT_FALSE(first->quiet);
  scheduler().cancel(*second);
  EXPECT_EQ(events_.quiet, 1u);
  complete_all();
}

TEST_F(PeerSchedulerTest, CancelsTheTransfersOnARegistration_AndNoOthers) {
  std::vector<std::byte> other(64);
  const auto there = take(registry_.add(other.data(), other.size(), {}, false));
  const auto kept = started();
  auto transfer = make_transfer();
  transfer->local->release();
  transfer->local = there;
  ASSERT_TRUE(there->acquire());
  must(submit(peer_, transfer));
  scheduler().cancel_all_on(*there);
  EXPECT_EQ(endpoint().canceled(), std::vector{endpoint().in_flight().back()});
  EXPECT_FALSE(kept->ending.canceled);
  complete_all();
}

TEST_F(PeerSchedulerTest, EndsAsTimedOutAfterTheCompletion_WhenTheDeadlinePasses) {
  const auto transfer = make_transfer();
  transfer->ending.deadline = now() + 1h;
  must(submit(peer_, transfer));
  progress();
  EXPECT_TRUE(endpoint().canceled().empty());
  const auto hint = scheduler().poll(now()).hint;
  EXPECT_EQ(hint.when, When::at);
  EXPECT_EQ(hint.at, transfer->ending.deadline) << "the ProgressThread must come by then";
  scheduler().progress(transfer->ending.deadline);
  EXPECT_EQ(endpoint().canceled(), endpoint().in_flight());
  EXPECT_FALSE(transfer->quiet);
  endpoint().complete_all({Code::canceled, Scope::request, "as asked"});
  progress();
  EXPECT_EQ(end_of(*transfer), "timed_out");
}

TEST_F(PeerSchedulerTest, EndsWhatIsQueuedAtOnceAndTheRestWithIts_WhenThePeerIsLost) {
  endpoint().set_room(1);
  const auto posted = started(), queued = started();
  scheduler().on_lost();
  EXPECT_EQ(end_of(*queued), "disconnected");
  EXPECT_FALSE(posted->quiet) << "its process lives and may still copy";
  EXPECT_EQ(scheduler().state(), PeerState::lost);
  EXPECT_EQ(submit(peer_, make_transfer()).code(), Code::disconnected);
  EXPECT_EQ(scheduler().may_begin().code(), Code::disconnected);
  EXPECT_EQ(scheduler().notify(bytes_of("x")).code(), Code::disconnected);
  EXPECT_FALSE(scheduler().is_connected());
  scheduler().on_gone();
  EXPECT_EQ(end_of(*posted), "disconnected");
  EXPECT_EQ(scheduler().state(), PeerState::gone);
}

TEST_F(PeerSchedulerTest, IsNotGone_WhileBytesOfThePeerMayArrive) {
  endpoint().set_drained(false);
  scheduler().on_gone();
  EXPECT_EQ(scheduler().state(), PeerState::lost);
  const PeerScheduler::Polled polled = scheduler().poll(now());
  EXPECT_FALSE(polled.over);
  EXPECT_NE(polled.hint.when, When::idle) << "the Endpoint may be drained since it was asked";
  EXPECT_TRUE(scheduler().has_work());
  endpoint().set_drained(true);
  const std::uint64_t quiet = events_.quiet;
  EXPECT_TRUE(scheduler().poll(now()).over);
  EXPECT_EQ(scheduler().state(), PeerState::gone);
  EXPECT_GT(events_.quiet, quiet) << "close() waits for it";
}

TEST_F(PeerSchedulerTest, IsNotOver_WhileATransferWithAGonePeerIsInFlight) {
  const auto transfer = started();
  scheduler().on_lost();
  EXPECT_FALSE(scheduler().poll(now()).over);
  scheduler().on_gone();
  progress();
  EXPECT_TRUE(transfer->quiet);
  EXPECT_TRUE(scheduler().poll(now()).over);
  EXPECT_TRUE(scheduler().has_work()) << "the PeerTable has to forget it";
}

TEST_F(PeerSchedulerTest, NotifiesAfterTheData_WhenTheTransportDoesNot) {
  endpoint().set_room(1);
  const auto transfer = notifying("written", 2);
  progress();
  EXPECT_EQ(endpoint().posted()[0].notification, "") << "a batch after it may write later";
  EXPECT_EQ(peer_.session().next_notification(), "");
  complete_all();
  EXPECT_EQ(end_of(*transfer), "ok");
  EXPECT_EQ(peer_.session().next_notification(), "written");
  EXPECT_EQ(peer_.session().next_notification(), "") << "it came twice";
  EXPECT_EQ(scheduler().metrics().counters.notifications_sent, 1u);
}

TEST_F(PeerSchedulerTest, LeavesTheNotificationToTheBatch_WhenTheTransportCarriesIt) {
  must(scheduler().notify(bytes_of("earlier")));
  endpoint().carry_notifications();
  const auto transfer = notifying("written");
  EXPECT_EQ(endpoint().posted()[0].notification, "written");
  EXPECT_EQ(endpoint().posted()[0].notifications_before, 1u);
  complete_all();
  EXPECT_EQ(end_of(*transfer), "ok");
  EXPECT_EQ(peer_.session().next_notification(), "earlier");
  EXPECT_EQ(peer_.session().next_notification(), "");
  EXPECT_EQ(scheduler().metrics().counters.notifications_sent, 2u);
}

TEST_F(PeerSchedulerTest, NotifiesOfNothing_WhenTheDataWasNotWritten) {
  const auto transfer = notifying("written");
  endpoint().complete_all({Code::corrupt, Scope::request, "a sum differs"});
  progress();
  EXPECT_EQ(end_of(*transfer), "corrupt");
  EXPECT_EQ(peer_.session().next_notification(), "");
}

TEST_F(PeerSchedulerTest, IsNotQuiet_UntilItsNotificationHasRoom) {
  const auto transfer = notifying("written");
  peer_.session().fill();
  complete_all();
  EXPECT_FALSE(transfer->quiet);
  EXPECT_EQ(scheduler().poll(now()).hint.when, When::at) << "the reader wakes no thread here";
  peer_.session().drain();
  EXPECT_EQ(progress(), 1u);
  EXPECT_EQ(end_of(*transfer), "ok");
  EXPECT_EQ(peer_.session().next_notification(), "written");
}

TEST_F(PeerSchedulerTest, EndsAtItsDeadline_WhenItsNotificationFindsNoRoom) {
  auto transfer = make_transfer();
  transfer->notification.bytes = bytes_of("written");
  transfer->ending.deadline = now() + 1h;
  must(submit(peer_, transfer));
  peer_.session().fill();
  complete_all();
  EXPECT_FALSE(transfer->quiet);
  scheduler().progress(transfer->ending.deadline);
  EXPECT_EQ(end_of(*transfer), "timed_out");
}

TEST_F(PeerSchedulerTest, EndsAsDisconnected_WhenThePeerLeftBeforeTheNotification) {
  const auto transfer = notifying("written");
  scheduler().on_lost();
  complete_all();
  EXPECT_EQ(end_of(*transfer), "disconnected");
  EXPECT_EQ(peer_.session().next_notification(), "");
}

TEST_F(PeerSchedulerTest, PushesTheCookieAtTheEnd_OrAtOnceIfItIsQuiet) {
  const auto queue = take(CompletionQueueState::create());
  const auto transfer = started();
  queue->reserve();
  scheduler().attach(*transfer, queue, 7);
  EXPECT_TRUE(queue->pop(10).empty());
  complete_all();
  EXPECT_EQ(queue->pop(10), std::vector<std::uint64_t>{7});
  queue->reserve();
  scheduler().attach(*transfer, queue, 8);
  EXPECT_EQ(queue->pop(10), std::vector<std::uint64_t>{8});
}

TEST_F(PeerSchedulerTest, BlocksTheReleaseStream_OnlyUntilTheTransferIsQuiet) {
  const auto transfer = started();
  transfer->streams.wants_release = true;
  const auto during = scheduler().release_stream(*transfer, nullptr);
  EXPECT_FALSE(during.event);
  EXPECT_TRUE(during.blocks);
  EXPECT_FALSE(transfer->streams.wants_release) << "an event would come too late";
  complete_all();
  EXPECT_FALSE(scheduler().release_stream(*transfer, nullptr).blocks);
}

TEST_F(PeerSchedulerTest, RefusesSubmissionsAndCancelsAll_WhenTheEngineCloses) {
  endpoint().set_room(1);
  const auto posted = started(), queued = started();
  scheduler().refuse({Code::canceled, Scope::process, "the Engine is closed"});
  progress();
  EXPECT_EQ(end_of(*queued), "canceled");
  EXPECT_EQ(endpoint().canceled(), endpoint().in_flight());
  EXPECT_TRUE(endpoint().stopped_serving());
  EXPECT_EQ(submit(peer_, make_transfer()).code(), Code::canceled);
  complete_all();
  EXPECT_TRUE(posted->quiet);
  EXPECT_EQ(scheduler().state(), PeerState::up);
}

TEST_F(PeerSchedulerTest, RefusesSubmissionsAndCancelsAll_WhenThisSideClosesThePeer) {
  const auto transfer = started();
  EXPECT_TRUE(scheduler().close());
  EXPECT_TRUE(scheduler().closing());
  EXPECT_EQ(scheduler().state(), PeerState::lost);
  EXPECT_TRUE(scheduler().is_connected()) << "its goodbye is to come";
  EXPECT_TRUE(endpoint().stopped_serving());
  EXPECT_EQ(submit(peer_, make_transfer()).code(), Code::disconnected);
  EXPECT_EQ(scheduler().notify(bytes_of("x")).code(), Code::disconnected);
  EXPECT_TRUE(scheduler().blocks_its_close(CloseBlocker::transfers));
  endpoint().complete_all({Code::canceled, Scope::request, "as asked"});
  progress();
  EXPECT_EQ(end_of(*transfer), "canceled");
  EXPECT_FALSE(scheduler().blocks_its_close(CloseBlocker::transfers));
  EXPECT_TRUE(scheduler().blocks_its_close(CloseBlocker::memory)) << "the peer is not gone";
  scheduler().close_endpoints();
  EXPECT_TRUE(endpoint().closed());
  scheduler().on_gone();
  EXPECT_FALSE(scheduler().blocks_its_close(CloseBlocker::memory));
  EXPECT_FALSE(scheduler().close()) << "there is no peer to close";
}

TEST_F(PeerSchedulerTest, BlocksClose_WhileItCopiesForThePeer) {
  EXPECT_FALSE(scheduler().blocks_its_close(CloseBlocker::copies));
  EXPECT_FALSE(scheduler().blocks_engine_close(CloseBlocker::copies));
  endpoint().set_hint({.when = When::now, .at = {}, .for_peer = true});
  EXPECT_TRUE(scheduler().blocks_its_close(CloseBlocker::copies));
  EXPECT_TRUE(scheduler().blocks_engine_close(CloseBlocker::copies));
}

TEST_F(PeerSchedulerTest, BlocksTheEnginesClose_WhileThePeerHasKeysOfOurMemory) {
  EXPECT_FALSE(scheduler().blocks_engine_close(CloseBlocker::memory));
  scheduler().count_export(5);
  EXPECT_TRUE(scheduler().has_keys());
  EXPECT_TRUE(scheduler().blocks_engine_close(CloseBlocker::memory));
  scheduler().retracted(5);
  EXPECT_FALSE(scheduler().blocks_engine_close(CloseBlocker::memory));
  scheduler().count_export(6);
  scheduler().on_gone();
  EXPECT_FALSE(scheduler().has_keys());
  EXPECT_FALSE(scheduler().blocks_engine_close(CloseBlocker::memory));
}

TEST_F(PeerSchedulerTest, WaitsUntilTheTransferIsQuiet_AndMakesTheProgressItself) {
  const auto transfer = started(2);
  endpoint().complete_all();
  scheduler().wait(*transfer, now(), now() + 10s);
  EXPECT_EQ(end_of(*transfer), "ok");
}

TEST_F(PeerSchedulerTest, MakesProgressForWhoeverLooks) {
  const auto transfer = started();
  scheduler().try_progress(now());
  EXPECT_FALSE(transfer->quiet);
  endpoint().complete_all();
  scheduler().try_progress(now());
  EXPECT_EQ(end_of(*transfer), "ok");
}

TEST_F(PeerSchedulerTest, ReturnsFromWaitAtTheLimit_WhenTheTransferIsNotQuiet) {
  const auto transfer = started();
  const base::Time begin = now(), limit = begin + 2ms;
  scheduler().wait(*transfer, now(), limit);
  EXPECT_GE(now(), limit);
  EXPECT_FALSE(transfer->quiet);
  complete_all();
}

/// A post behind a sleep takes longer.
TEST_F(PeerSchedulerTest, SleepsInWait_UnlessTheEndIsPredictedSoon) {
  const auto transfer = started();
  const auto sleeps_before_end_in = [&](Duration predicted) {
    const auto sleeps = [] {
      rusage used{};
      ::getrusage(RUSAGE_THREAD, &used);
      return used.ru_nvcsw;
    };
    const base::Time begin = now();
    endpoint().set_hint({.when = When::at, .at = begin + predicted});
    transfer->ending.submitted = begin;
    const auto before = sleeps();
    scheduler().wait(*transfer, begin, begin + std::min<Duration>(predicted, 50ms));
    return sleeps() - before;
  };
  auto soon = sleeps_before_end_in(3ms);
  for (int i = 0; i < 3; ++i) soon = std::min(soon, sleeps_before_end_in(3ms));  // but for a lock
  EXPECT_EQ(soon, 0);
  EXPECT_GT(sleeps_before_end_in(1h), 0);
  complete_all();
}

/// The ProgressThread leaves the polls to the thread in wait().
TEST_F(PeerSchedulerTest, MakesTheHintPatient_WhileAThreadWaits) {
  const auto transfer = started();
  endpoint().set_hint({.when = When::now, .at = {}});
  EXPECT_FALSE(scheduler().poll(now()).hint.patient);
  const base::Time limit = now() + 10s;
  std::jthread waiter([&] { scheduler().wait(*transfer, now(), limit); });
  transport::PollHint hint;
  while (!hint.patient && now() < limit) hint = scheduler().poll(now()).hint;
  EXPECT_TRUE(hint.patient);
  EXPECT_EQ(hint.when, When::at);
  endpoint().complete_all();
  waiter.join();
  EXPECT_LT(now(), limit);
  EXPECT_EQ(end_of(*transfer), "ok");
}

/// The user's thread looks again soon.
TEST_F(PeerSchedulerTest, MakesTheHintPatientOnce_AfterAThreadHasLooked) {
  const auto transfer = started();
  endpoint().set_hint({.when = When::now, .at = {}});
  scheduler().try_progress(now());
  EXPECT_TRUE(scheduler().poll(now()).hint.patient);
  EXPECT_FALSE(scheduler().poll(now()).hint.patient) << "nobody has looked since";
  endpoint().set_hint({.when = When::now, .at = {}, .for_peer = true});
  scheduler().try_progress(now());
  EXPECT_FALSE(scheduler().poll(now()).hint.patient) << "the peer waits, and looks nowhere";
  complete_all();
}

TEST_F(PeerSchedulerTest, LeavesProgressToTheThreadThatMakesIt) {
  const auto transfer = started();
  endpoint().complete_all();
  must(scheduler().on_message_frame([&](Rendezvous&) {  // under the mutex
    PeerScheduler::Polled polled;
    std::jthread([&] { polled = scheduler().poll(now()); }).join();
    EXPECT_TRUE(polled.hint.patient);
    EXPECT_FALSE(polled.over || polled.rested || transfer->quiet);
    return Status();
  }));
  EXPECT_EQ(end_of(*transfer), "ok");
}

TEST_F(PeerSchedulerTest, EndsATransferInItsSubmission_WhenItsBatchHasEnded) {
  endpoint().end_at_once();
  const auto transfer = make_transfer();
  transfer->by_user.allowed = true;
  transfer->notification.bytes = bytes_of("told");
  must(submit(peer_, transfer));
  EXPECT_EQ(end_of(*transfer), "ok");
  EXPECT_EQ(peer_.session().next_notification(), "told");
  EXPECT_EQ(progress(), 1u) << "it is counted once";
  EXPECT_EQ(scheduler().unquiet(), 0u);
}

TEST_F(PeerSchedulerTest, WakesTheWaiter_WhenAnotherThreadMakesTheTransferQuiet) {
  const auto first = started(), second = started();
  const base::Time limit = now() + 10s;
  std::jthread one([&] { scheduler().wait(*first, now(), limit); });
  std::jthread other([&] { scheduler().wait(*second, now(), limit); });
  endpoint().complete_all();
  one.join();
  other.join();
  EXPECT_LT(now(), limit);
  EXPECT_EQ(end_of(*first), "ok");
  EXPECT_EQ(end_of(*second), "ok");
}

TEST_F(PeerSchedulerTest, DestroysEndedRegionsWithoutItsMutex_WhenItIsPolled) {
  bool ended = false;
  auto transfer = make_transfer();
  transfer->remote = test::FakeMemory::remote([&] {
    ended = true;
    EXPECT_EQ(scheduler().unquiet(), 0u) << "this would never return under the mutex";
  });
  must(submit(peer_, transfer));
  complete_all();
  EXPECT_TRUE(transfer->quiet);
  EXPECT_FALSE(ended) << "progress() runs under the mutex";
  scheduler().poll(now());
  EXPECT_TRUE(ended);
}

TEST_F(PeerSchedulerTest, AsksToBePolled_WheneverWorkComes) {
  const auto activated = [&](const auto& work) {
    scheduler().active = false;
    const std::uint64_t before = events_.activated;
    work();
    return events_.activated > before;
  };
  Transfer transfer;
  EXPECT_TRUE(activated([&] { transfer = started(); }));
  EXPECT_TRUE(activated([&] { scheduler().cancel(*transfer); }));
  EXPECT_TRUE(activated([&] { scheduler().cancel_all_on(*transfer->local); }));
  EXPECT_TRUE(activated([&] {
    must(scheduler().on_transport_message({.transport = "fake", .op = 1, .bytes = {}}, {}));
  }));
  EXPECT_TRUE(activated([&] { (void)scheduler().on_data_connection("fake", Status()); }));
  EXPECT_TRUE(
      activated([&] { (void)scheduler().on_message_frame([](auto&) { return Status(); }); }));
  EXPECT_TRUE(activated([&] { scheduler().refuse({Code::canceled, Scope::process, "closed"}); }));
  EXPECT_TRUE(activated([&] { scheduler().close(); }));
  EXPECT_TRUE(activated([&] { scheduler().on_lost(); }));
  EXPECT_TRUE(activated([&] { scheduler().on_gone(); }));
  scheduler().active = true;
  const std::uint64_t before = events_.activated;
  (void)submit(peer_, make_transfer());
  EXPECT_EQ(events_.activated, before) << "it is polled already";
  EXPECT_TRUE(transfer->quiet);
}

TEST_F(PeerSchedulerTest, HasWork_WhileATransferIsNotQuiet) {
  EXPECT_FALSE(scheduler().has_work());
  const auto transfer = started();
  EXPECT_TRUE(scheduler().has_work());
  complete_all();
  EXPECT_TRUE(scheduler().has_work()) << "what has ended is to be destroyed";
  scheduler().poll(now());
  EXPECT_FALSE(scheduler().has_work());
}

TEST_F(PeerSchedulerTest, PassesAMessage_ToTheEndpointOfItsTransportAlone) {
  must(scheduler().on_transport_message({.transport = "fake", .op = 1, .bytes = bytes_of("hi")},
                                        {}));
  EXPECT_EQ(endpoint().messages(), std::vector<std::string>{"hi"});
  const auto no =
      scheduler().on_transport_message({.transport = "other", .op = 1, .bytes = {}}, {});
  EXPECT_EQ(no.code(), Code::unsupported);
  EXPECT_EQ(scheduler().on_data_connection("other", Status()).code(), Code::unsupported);
}

TEST_F(PeerSchedulerTest, ExplainsByTheEndpoint_UnlessThisSideClosesThePeer) {
  const auto transfer = make_transfer();
  transfer->local->release();
  EXPECT_EQ(take(scheduler().explain(*transfer, {.blocks = 1, .bytes = 8})).path, "fake+nothing");
  scheduler().close();
  const auto closed = scheduler().explain(*transfer, {.blocks = 1, .bytes = 8});
  EXPECT_EQ(closed.status().code(), Code::disconnected);
}

TEST_F(PeerSchedulerTest, DescribesItsTransfers_UntilTheyAreQuiet) {
  endpoint().set_room(1);
  const auto first = started(2), second = started();
  EXPECT_EQ(scheduler().oldest(1), (std::pair{std::vector<std::uint64_t>{1}, std::size_t{2}}));
  const std::string line = scheduler().line_of(first->id, now());
  EXPECT_NE(line.find("write of 128 bytes"), std::string::npos) << line;
  EXPECT_NE(line.find("1 of 2 batches posted, 1 in flight"), std::string::npos) << line;
  EXPECT_NE(scheduler().line_of(second->id, now()).find("waits for room"), std::string::npos);
  complete_all();
  EXPECT_EQ(scheduler().line_of(first->id, now()), "");
}

TEST_F(PeerSchedulerTest, DescribesThePeerAndItsRegions) {
  const auto region = test::FakeMemory::remote();
  scheduler().count_import(region);
  scheduler().count_import(nullptr);
  scheduler().count_export(5);
  endpoint().set_served({{.serial = 5, .op = Op::read, .bytes = 9, .still = 2ms}});
  const std::string line = scheduler().line(now());
  for (const char* const part :
       {"peer 1 ", ": up, met ", "by fake; 0 not quiet, 0 queued", "imported \"theirs\"",
        "keys of region 5", "does a read (9 bytes have moved, none for 2 ms) on region 5"})
    EXPECT_NE(line.find(part), std::string::npos) << part << " in " << line;
  EXPECT_NE(scheduler().uses_of(5).find("peer 1 "), std::string::npos);
  EXPECT_EQ(scheduler().uses_of(6), "");
  EXPECT_EQ(scheduler().describe_paths(), " by fake (a fake path)");
  EXPECT_EQ(scheduler().imported(), std::vector{region});
  const auto counters = scheduler().metrics().counters;
  EXPECT_EQ(counters.imports, 1u);
  EXPECT_EQ(counters.imports_failed, 1u);
  EXPECT_EQ(counters.keys_sent, 1u);
}

TEST_F(PeerSchedulerTest, CountsTransfersByTheirEnd) {
  started();
  complete_all();
  started();
  endpoint().complete_all({Code::corrupt, Scope::request, "a sum differs"});
  progress();
  auto counters = scheduler().metrics().counters;
  EXPECT_EQ(counters.started, 2u);
  EXPECT_EQ(counters.failed[static_cast<std::size_t>(Code::corrupt)], 1u);
  const auto& path = counters.for_path("fake");
  EXPECT_EQ(path.transfers[static_cast<std::size_t>(Work::write)], 1u);
  EXPECT_EQ(path.bytes[static_cast<std::size_t>(Work::write)], test::FakeTransport::kBatchBytes);
}

/// Two-sided transfers, whose peer is the test.
class PeerSchedulerMessages : public PeerSchedulerTest {
 protected:
  /// Returns a message of 40 bytes at the begin of the memory.
  Transfer message(bool sends) {
    auto transfer = std::make_shared<TransferState>();
    transfer->peer = 1;
    transfer->bytes = 40;
    transfer->ending.submitted = now();
    transfer->ending.deadline = base::Time::max();
    transfer->message = std::make_unique<MessageState>();
    transfer->message->sends = sends;
    transfer->message->tag = 3;
    transfer->message->memory =
        take(buffers_.acquire_buffer(memory_.data(), transfer->bytes, sends, false));
    return transfer;
  }
  Transfer sending() {
    auto transfer = message(true);
    must(scheduler().submit(
        transfer,
        {.payload = encode(control::MessageOffer{.tag = 3, .bytes = 40}), .bare = {}, .fds = {}}));
    return transfer;
  }
  Transfer receiving() {
    auto transfer = message(false);
    must(scheduler().submit(transfer, {}));
    return transfer;
  }
  /// Delivers the peer's offer of 40 bytes with its key.
  void offer(std::uint64_t id) {
    must(scheduler().on_message_frame([&](Rendezvous& rendezvous) {
      return rendezvous.on_offer(id, {.tag = 3, .bytes = 40, .serial = 9},
                                 test::FakeMemory::remote());
    }));
  }
  void finish(std::uint64_t id, const control::MessageFinished& finished) {
    must(scheduler().on_message_frame(
        [&](Rendezvous& rendezvous) { return rendezvous.on_finished(id, finished); }));
  }
  /// Returns the next frame to the peer, of which the op must be `op`.
  base::Frame frame(FrameOp op) {
    auto next = peer_.session().next();
    if (!next) throw std::runtime_error("no frame was sent");
    EXPECT_EQ(static_cast<FrameOp>(next->header.op), op);
    return *std::move(next);
  }

  UnregisteredBuffers buffers_{registry_, nullptr, transports_};
};

TEST_F(PeerSchedulerMessages, EndASend_WhenThePeerHasCopied) {
  const auto transfer = sending();
  EXPECT_EQ(frame(FrameOp::offer).header.id, transfer->id);
  EXPECT_FALSE(transfer->quiet);
  const auto offered = scheduler().offered(transfer->message->memory.serial());
  EXPECT_NE(offered.registration, nullptr) << "the peer may ask for its key";
  EXPECT_EQ(scheduler().offered(12345).registration, nullptr);
  finish(transfer->id, {.by_sender = false});
  EXPECT_EQ(end_of(*transfer), "ok");
  EXPECT_EQ(scheduler().unquiet(), 0u);
}

TEST_F(PeerSchedulerMessages, EndAReceive_WhenItsCopyHasCompleted) {
  const auto transfer = receiving();
  offer(77);
  ASSERT_EQ(endpoint().posted().size(), 1u);
  EXPECT_EQ(endpoint().posted()[0].op, Op::read);
  EXPECT_FALSE(transfer->quiet);
  complete_all();
  EXPECT_EQ(end_of(*transfer), "ok");
  EXPECT_EQ(transfer->bytes, 40u);
  EXPECT_EQ(transfer->batches.path_taken.path, "fake");
  const auto finished = frame(FrameOp::finished);
  EXPECT_EQ(finished.header.id, 77u);
  EXPECT_TRUE(take(control::decode_finished(finished.payload)).status.ok());
  EXPECT_EQ(scheduler().metrics().counters.started, 1u) << "the copy is part of the message";
}

TEST_F(PeerSchedulerMessages, WaitForAReceive_WhenTheOfferCameFirst) {
  offer(77);
  EXPECT_TRUE(endpoint().posted().empty());
  const auto transfer = receiving();
  complete_all();
  EXPECT_EQ(end_of(*transfer), "ok");
}

TEST_F(PeerSchedulerMessages, EndAReceiveAtOnce_WhenItIsCanceledUnmatched) {
  const auto transfer = receiving();
  scheduler().cancel(*transfer);
  EXPECT_EQ(end_of(*transfer), "canceled");
}

TEST_F(PeerSchedulerMessages, EndACanceledReceiveWithItsCopy) {
  const auto transfer = receiving();
  offer(77);
  scheduler().cancel(*transfer);
  EXPECT_EQ(endpoint().canceled(), endpoint().in_flight());
  EXPECT_FALSE(transfer->quiet);
  endpoint().complete_all({Code::canceled, Scope::request, "as asked"});
  progress();
  EXPECT_EQ(end_of(*transfer), "canceled");
}

TEST_F(PeerSchedulerMessages, EndACanceledSend_OnlyWhenThePeerHasAnswered) {
  const auto transfer = sending();
  scheduler().cancel(*transfer);
  EXPECT_FALSE(transfer->quiet) << "the peer may read its memory";
  (void)frame(FrameOp::offer);
  EXPECT_EQ(frame(FrameOp::withdraw).header.id, transfer->id);
  finish(transfer->id,
         {.by_sender = false, .status = {Code::canceled, Scope::request, "as asked"}});
  EXPECT_EQ(end_of(*transfer), "canceled");
}

TEST_F(PeerSchedulerMessages, AreNotQuiet_WhileTheirMemoryIsInUse) {
  const auto transfer = sending();
  transport().retracted = Status(Code::busy, Scope::request, "the peer maps it");
  finish(transfer->id, {.by_sender = false});
  EXPECT_FALSE(transfer->quiet);
  EXPECT_EQ(scheduler().poll(now()).hint.when, When::at);
  transport().retracted = {};
  progress();
  EXPECT_EQ(end_of(*transfer), "ok");
}

TEST_F(PeerSchedulerMessages, AnswerNoResource_WhenTheOfferHasNoRoom) {
  peer_.session().fill();
  const auto transfer = message(true);
  const auto status = scheduler().submit(
      transfer,
      {.payload = encode(control::MessageOffer{.tag = 3, .bytes = 40}), .bare = {}, .fds = {}});
  EXPECT_EQ(status.code(), Code::no_resource);
  EXPECT_EQ(scheduler().unquiet(), 0u);
  must(transfer->message->memory.release());
}

TEST_F(PeerSchedulerMessages, SendFinishedOnceThereIsRoom) {
  const auto transfer = receiving();
  peer_.session().fill();
  offer(77);
  complete_all();
  EXPECT_EQ(end_of(*transfer), "ok");
  EXPECT_NE(scheduler().line(now()).find("1 messages wait for room"), std::string::npos);
  peer_.session().drain();
  progress();
  EXPECT_EQ(frame(FrameOp::finished).header.id, 77u);
}

TEST_F(PeerSchedulerMessages, EndAsDisconnected_WhenThePeerIsGone) {
  const auto send = sending(), receive = receiving();
  scheduler().on_lost();
  EXPECT_EQ(end_of(*receive), "disconnected");
  EXPECT_FALSE(send->quiet) << "its process may still read the memory";
  scheduler().on_gone();
  EXPECT_EQ(end_of(*send), "disconnected");
}

TEST_F(PeerSchedulerMessages, FailAReceive_ThatLeavesThePeersRegion) {
  const auto transfer = receiving();
  must(scheduler().on_message_frame([&](Rendezvous& rendezvous) {
    return rendezvous.on_offer(
        77, {.tag = 3, .bytes = 40, .serial = 9, .offset = ~std::uint64_t{0} - 8},
        test::FakeMemory::remote());
  }));
  EXPECT_TRUE(endpoint().posted().empty());
  EXPECT_EQ(end_of(*transfer), "corrupt");
}

TEST_F(PeerSchedulerMessages, FailAReceive_WhosePathIsNotTheRequiredOne) {
  auto transfer = message(false);
  transfer->message->require = "tcp";
  must(scheduler().submit(transfer, {}));
  offer(77);
  EXPECT_EQ(end_of(*transfer), "unsupported");
}

}  // namespace peer_scheduler_test
}  // namespace linkspan::engine
