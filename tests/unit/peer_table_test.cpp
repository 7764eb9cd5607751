// Tests a PeerTable: which peers are polled, how they are forgotten, and that idle peers cost
// nothing.
#include "engine/peers/peer_table.hpp"

#include <deque>
#include <thread>

#include "tests/unit/engine_fixture.hpp"

namespace linkspan::engine {
namespace peer_table_test {

using namespace std::chrono_literals;
using test::must, test::take;
using When = transport::PollHint::When;

class PeerTableTest : public test::EngineFixture {
 protected:
  /// Adds a peer whose session has no socket.
  test::FakePeer& add(std::uint64_t id) {
    peers_.emplace_back(test::TestSession::without_socket(id), table_, transports_, log_);
    table_.add(peers_.back().scheduler);
    return peers_.back();
  }
  /// Polls until no peer has work.
  void settle() {
    while (table_.poll(now()).when != When::idle) {
    }
  }
  /// Returns whether progress() of the table reaches the peer.
  bool is_active(const test::FakePeer& peer) { return peer.scheduler->active; }
  const test::EndpointCalls& transport_calls() const {
    return test::FakePeer::fake(transports_).calls;
  }

  PeerTable table_;
  std::deque<test::FakePeer> peers_;  // its elements keep their addresses
};

TEST_F(PeerTableTest, FindsPeersById) {
  const auto& peer = add(4);
  EXPECT_EQ(table_.find(4), peer.scheduler);
  EXPECT_EQ(table_.find(5), nullptr);
  EXPECT_EQ(table_.all(), std::vector{peer.scheduler});
  EXPECT_EQ(table_.session_of(4), peer.scheduler->session());
  EXPECT_EQ(table_.session_of(5), nullptr);
}

/// Else each transfer of a user who waits for one after the other would enter and leave the list.
TEST_F(PeerTableTest, KeepsThePeerActive_UntilItHasRestedForOnePoll) {
  auto& peer = add(4);
  peer.endpoint->complete_each();
  settle();
  ASSERT_FALSE(is_active(peer));
  auto transfer = make_transfer();
  must(submit(peer, transfer));
  EXPECT_EQ(table_.poll(now()).when, When::idle);
  EXPECT_TRUE(transfer->quiet);
  EXPECT_TRUE(is_active(peer));
  EXPECT_EQ(table_.poll(now()).when, When::idle);
  EXPECT_FALSE(is_active(peer));
}

TEST_F(PeerTableTest, ActivatesThePeer_ThatFindActiveFinds) {
  const auto& peer = add(4);
  settle();
  ASSERT_FALSE(is_active(peer));
  EXPECT_EQ(table_.find_active(5), nullptr);
  EXPECT_EQ(table_.find_active(4), peer.scheduler);
  EXPECT_TRUE(is_active(peer));
  EXPECT_EQ(table_.find_active(4), peer.scheduler);
  settle();
  EXPECT_FALSE(is_active(peer)) << "it is in the list twice, or stays there without work";
}

TEST_F(PeerTableTest, ReturnsAUsablePeer_WhileOperationsMayBegin) {
  const auto& peer = add(1);
  EXPECT_EQ(take(table_.usable(1)), peer.scheduler);
  const auto none = table_.usable(2);
  EXPECT_EQ(none.status().code(), Code::disconnected);
  EXPECT_NE(none.status().what().find("peer 2"), std::string::npos);
  peer.scheduler->close();
  EXPECT_EQ(table_.usable(1).status().code(), Code::disconnected);
  EXPECT_EQ(table_.session_of(1), nullptr) << "this side closes it";
  EXPECT_EQ(table_.find(1), peer.scheduler);
}

TEST_F(PeerTableTest, AnswersTheRefusalOfClose_ForAPeerThatIsAbsent) {
  EXPECT_EQ(table_.absent(7).code(), Code::disconnected);
  table_.close({Code::canceled, Scope::process, "the Engine is closed"});
  EXPECT_EQ(table_.absent(7).code(), Code::canceled);
  EXPECT_EQ(table_.usable(7).status().code(), Code::canceled);
}

TEST_F(PeerTableTest, CallsAnIdlePeerNoMore_UntilItHasWork) {
  auto& peer = add(1);
  EXPECT_TRUE(is_active(peer)) << "its Endpoints may have work already";
  settle();
  EXPECT_FALSE(is_active(peer));
  const base::Time at = now();
  (void)table_.poll(at);  // asks idle peers too, for the next second
  const auto before = transport_calls().all();
  table_.progress(at);
  EXPECT_EQ(table_.poll(at).when, When::idle);
  EXPECT_EQ(transport_calls().all(), before);
  table_.activate(*peer.scheduler);
  table_.activate(*peer.scheduler);
  table_.progress(now());
  EXPECT_EQ(transport_calls().progress, before[2] + 1) << "it is in the list once";
}

TEST_F(PeerTableTest, PollsAnIdlePeerAgain_WhoseWorkCameByNoCallOfTheEngine) {
  auto& peer = add(1);
  settle();
  const base::Time begin = now();
  peer.endpoint->set_hint({.when = When::at, .at = begin + 1h});
  EXPECT_FALSE(is_active(peer));
  (void)table_.poll(begin + 2s);
  EXPECT_TRUE(is_active(peer));
  EXPECT_EQ(table_.poll(begin + 2s).at, begin + 1h);
}

TEST_F(PeerTableTest, KeepsAPeer_ThatHasWorkAtATime) {
  auto& peer = add(1);
  const base::Time at = now() + 1h;
  peer.endpoint->set_hint({.when = When::at, .at = at});
  const auto hint = table_.poll(now());
  EXPECT_EQ(hint.when, When::at);
  EXPECT_EQ(hint.at, at);
  EXPECT_TRUE(is_active(peer));
}

TEST_F(PeerTableTest, ReturnsTheEarliestHintOfAllPeers) {
  const base::Time begin = now();
  add(1).endpoint->set_hint({.when = When::at, .at = begin + 2h});
  add(2).endpoint->set_hint({.when = When::at, .at = begin + 1h});
  add(3);
  EXPECT_EQ(table_.poll(now()).at, begin + 1h);
}

TEST_F(PeerTableTest, CountsWhatBecameQuiet_WithEveryActivePeer) {
  for (std::uint64_t id = 1; id <= 3; ++id) {
    auto& peer = add(id);
    must(submit(peer, make_transfer()));
    peer.endpoint->complete_all();
  }
  EXPECT_EQ(table_.progress(now()), 3u);
  EXPECT_EQ(table_.progress(now()), 0u);
}

/// The region ends after poll() has found no more work and before the peer leaves the list.
TEST_F(PeerTableTest, KeepsAPeer_ThatGetsWorkWhileItIsPolled) {
  auto& peer = add(1);
  const auto second = make_transfer();
  auto first = make_transfer();
  first->remote = test::FakeMemory::remote([&] { must(submit(peer, second)); });
  must(submit(peer, first));
  first = nullptr;
  peer.endpoint->complete_all();
  (void)table_.poll(now());
  EXPECT_TRUE(is_active(peer));
  peer.endpoint->complete_all();
  EXPECT_EQ(table_.progress(now()), 1u);
  EXPECT_EQ(end_of(*second), "ok");
}

TEST_F(PeerTableTest, LosesNoWork_WhileAnotherThreadPolls) {
  auto& peer = add(1);
  peer.endpoint->complete_each();
  std::jthread poller([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) table_.poll(now());
  });
  for (int i = 0; i < 500; ++i) {
    const auto transfer = make_transfer();
    must(submit(peer, transfer));
    const auto limit = base::Deadline::in(20s);
    while (!transfer->quiet && !limit.passed()) std::this_thread::yield();
    ASSERT_EQ(end_of(*transfer), "ok") << "transfer " << i << " was lost";
  }
}

TEST_F(PeerTableTest, ForgetsAPeer_ThatIsGoneWithNothingInFlight) {
  auto& peer = add(1);
  must(submit(peer, make_transfer()));
  peer.scheduler->on_lost();
  (void)table_.poll(now());
  EXPECT_NE(table_.find(1), nullptr);
  peer.scheduler->on_gone();
  settle();
  EXPECT_EQ(table_.find(1), nullptr);
  const auto forgotten = table_.forgotten();
  EXPECT_EQ(forgotten.started, 1u);
  EXPECT_EQ(forgotten.failed[static_cast<std::size_t>(Code::disconnected)], 1u);
  const std::uint64_t calls = transport_calls().progress;
  table_.activate(*peer.scheduler);
  table_.progress(now());
  EXPECT_EQ(transport_calls().progress, calls) << "it is no peer any more";
}

TEST_F(PeerTableTest, RefusesSubmissionsWithEveryPeer_AfterClose) {
  auto& before = add(1);
  const auto transfer = make_transfer();
  must(submit(before, transfer));
  table_.close({Code::canceled, Scope::process, "the Engine is closed"});
  EXPECT_TRUE(transfer->ending.canceled);
  EXPECT_EQ(submit(before, make_transfer()).code(), Code::canceled);
  auto& later = add(2);
  EXPECT_EQ(submit(later, make_transfer()).code(), Code::canceled);
  EXPECT_TRUE(later.endpoint->stopped_serving());
  EXPECT_TRUE(table_.is_close_blocked(CloseBlocker::transfers, std::nullopt));
  before.endpoint->complete_all({Code::canceled, Scope::request, "as asked"});
  table_.progress(now());
  EXPECT_FALSE(table_.is_close_blocked(CloseBlocker::transfers, std::nullopt));
}

TEST_F(PeerTableTest, BlocksTheCloseOfOnePeer_ForThatPeerAlone) {
  auto& busy = add(1);
  add(2);
  must(submit(busy, make_transfer()));
  EXPECT_TRUE(table_.is_close_blocked(CloseBlocker::transfers, 1));
  EXPECT_FALSE(table_.is_close_blocked(CloseBlocker::transfers, 2));
  EXPECT_FALSE(table_.is_close_blocked(CloseBlocker::transfers, 3)) << "there is no such peer";
  EXPECT_TRUE(table_.is_close_blocked(CloseBlocker::transfers, std::nullopt));
}

TEST_F(PeerTableTest, ListsTheConnectedRemotePeers_ThatCloseWaitsFor) {
  auto& waited_for = add(1);  // without a socket a session counts as remote
  add(2);
  auto& lost = add(3);
  must(submit(waited_for, make_transfer()));
  must(submit(lost, make_transfer()));
  lost.scheduler->on_lost();
  EXPECT_EQ(table_.remote_close_blockers(CloseBlocker::transfers, std::nullopt),
            std::vector{waited_for.scheduler->session()});
  EXPECT_TRUE(table_.remote_close_blockers(CloseBlocker::transfers, 2).empty());
}

TEST_F(PeerTableTest, ReturnsAtOnceFromTheWait_WhenSomethingHasChanged) {
  const std::uint64_t seen = table_.changes();
  table_.on_quiet();
  EXPECT_NE(table_.changes(), seen);
  const auto limit = base::Deadline::in(10s);
  EXPECT_FALSE(table_.wait_for_change(seen, limit)) << "no interrupt";
  EXPECT_FALSE(limit.passed());
}

TEST_F(PeerTableTest, EndsTheWait_WhenATransferBecomesQuiet) {
  auto& peer = add(1);
  must(submit(peer, make_transfer()));
  const std::uint64_t seen = table_.changes();
  const auto limit = base::Deadline::in(10s);
  std::jthread waiter([&] {
    while (table_.changes() == seen && !limit.passed()) table_.wait_for_change(seen, limit);
  });
  peer.endpoint->complete_all();
  table_.progress(now());
  waiter.join();
  EXPECT_FALSE(limit.passed());
  EXPECT_NE(table_.changes(), seen);
}

TEST_F(PeerTableTest, EndsTheWaitAtTheDeadline_WhenNothingChanges) {
  const auto limit = base::Deadline::in(1ms);
  while (!limit.passed()) EXPECT_FALSE(table_.wait_for_change(table_.changes(), limit));
}

TEST_F(PeerTableTest, GivesEachTransferAnIdOfItsOwn) {
  EXPECT_EQ(table_.new_transfer_id(), 1u);
  EXPECT_EQ(table_.new_transfer_id(), 2u);
}

TEST_F(PeerTableTest, ClosesTheEndpointsOfAllPeers_WhenItIsDestroyed) {
  auto& peer = add(1);
  table_.destroy();
  EXPECT_TRUE(peer.endpoint->closed());
  EXPECT_EQ(table_.find(1), nullptr);
}

/// Counts the calls of all Endpoints, which are what a peer costs.
class PeerTableCost : public PeerTableTest {
 protected:
  /// Returns the calls of Endpoints for one life of a transfer, among so many peers.
  std::array<std::uint64_t, 5> cost(std::uint64_t peers) {
    for (std::uint64_t id = 1; id <= peers; ++id) add(id);
    settle();
    auto& peer = peers_[peers / 2];
    const std::uint64_t id = peer.scheduler->id();
    const auto before = transport_calls().all();

    const auto transfer = make_transfer(), canceled = make_transfer();
    must(submit(*find(id), transfer));
    must(submit(*find(id), canceled));
    table_.progress(now());
    peer.endpoint->complete(peer.endpoint->in_flight().front());
    table_.find(id)->wait(*transfer, now(), now() + 10s);
    table_.find(id)->cancel(*canceled);
    (void)table_.poll(now());
    table_.find(id)->close();
    EXPECT_TRUE(table_.is_close_blocked(CloseBlocker::transfers, id));
    peer.endpoint->complete_all({Code::canceled, Scope::request, "as asked"});
    EXPECT_EQ(table_.progress(now()), 1u);
    EXPECT_FALSE(table_.is_close_blocked(CloseBlocker::transfers, id));
    EXPECT_FALSE(table_.is_close_blocked(CloseBlocker::copies, id));
    table_.find(id)->on_gone();
    settle();
    EXPECT_EQ(table_.find(id), nullptr);
    EXPECT_EQ(end_of(*transfer), "ok");
    EXPECT_EQ(end_of(*canceled), "canceled");

    auto calls = transport_calls().all();
    for (std::size_t i = 0; i < calls.size(); ++i) calls[i] -= before[i];
    table_.destroy();
    peers_.clear();  // the next cost() begins anew
    return calls;
  }

 private:
  test::FakePeer* find(std::uint64_t id) { return &peers_[id - 1]; }
};

TEST_F(PeerTableCost, IsTheSame_Beside0And15And255IdlePeers) {
  const auto alone = cost(1);
  EXPECT_EQ(alone[0], 2u) << "two posts";
  EXPECT_GT(alone[2], 0u);
  EXPECT_EQ(cost(16), alone);
  EXPECT_EQ(cost(256), alone);
}

}  // namespace peer_table_test
}  // namespace linkspan::engine
