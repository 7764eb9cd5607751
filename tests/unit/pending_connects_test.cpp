// Tests the waits of connect(): what ends them, which answer they return, and when decide() reaches
// no wait any more.
#include "control/pending_connects.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "linkspan/interrupt_check.hpp"
#include "tests/unit/engine_fixture.hpp"

namespace linkspan::control {
namespace pending_connects_test {

using namespace std::chrono_literals;

Status refused() { return {Code::permission_denied, Scope::peer, "another secret"}; }

/// Each wait has 30 s, and must end long before.
class PendingConnectsTest : public ::testing::Test {
 protected:
  ~PendingConnectsTest() override { EXPECT_GT(limit_.left(), 10s) << "a wait was not woken"; }

  Result<std::shared_ptr<Session>> await(ConnectResult& result) {
    return connects_.await(result, limit_, "tcp:10.0.0.1:4711");
  }
  /// Runs `act` on another thread once `wait` is about to begin on this one.
  template <class Wait>
  static auto during(const std::function<void()>& act, const Wait& wait) {
    std::atomic<bool> begun = false;
    const std::jthread other([&] {
      begun.wait(false);
      std::this_thread::yield();
      act();
    });
    begun = true;
    begun.notify_all();
    return wait();
  }

  const base::Deadline limit_ = base::Deadline::in(30s);
  PendingConnects connects_;
  ConnectResult result_;
};

TEST_F(PendingConnectsTest, ReturnsTheSession_WhenItIsDecidedDuringTheWait) {
  const test::TestSession peer(1);
  for (int round = 0; round < 20; ++round) {
    ConnectResult result;
    bool waits = false;
    const auto session = during([&] { waits = connects_.decide(result, {}, peer.session()); },
                                [&] { return await(result); });
    ASSERT_TRUE(session.ok()) << session.status().to_string();
    EXPECT_EQ(*session, peer.session());
    ASSERT_GT(limit_.left(), 10s);
  }
}

TEST_F(PendingConnectsTest, ReturnsTheReason_WhenItIsDecidedBeforeTheWait) {
  EXPECT_TRUE(connects_.decide(result_, refused()));
  const Status status = connects_.await(result_, base::Deadline::in(0s), "a").status();
  EXPECT_EQ(status.code(), Code::permission_denied) << "it needs no time";
  EXPECT_EQ(status.what(), "another secret");
}

/// The session that comes too late has to be closed by the Control thread.
TEST_F(PendingConnectsTest, NamesTheAddressAndIsAbandoned_WhenNoAnswerComes) {
  const Status status =
      connects_.await(result_, base::Deadline::in(5ms), "tcp:10.0.0.1:4711").status();
  EXPECT_EQ(status.code(), Code::timed_out);
  EXPECT_EQ(status.what(), "no answer to the handshake at tcp:10.0.0.1:4711");
  const test::TestSession late(1);
  EXPECT_FALSE(connects_.decide(result_, {}, late.session()));
  EXPECT_EQ(late.session().use_count(), 1) << "it is kept";
}

TEST_F(PendingConnectsTest, OneTimeOutLeavesTheOtherWaits) {
  ConnectResult other;
  EXPECT_EQ(connects_.await(result_, base::Deadline::in(0s), "a").status().code(), Code::timed_out);
  EXPECT_TRUE(connects_.decide(other, refused()));
  EXPECT_EQ(await(other).status().code(), Code::permission_denied);
}

TEST_F(PendingConnectsTest, EndsAllWaitsNowAndLater_WhenItIsClosed) {
  const auto ended =
      during([&] { EXPECT_TRUE(connects_.close()); }, [&] { return await(result_); });
  EXPECT_EQ(ended.status().code(), Code::canceled);
  EXPECT_EQ(ended.status().what(), "the Engine is closing");
  EXPECT_EQ(ended.status().what(), PendingConnects::closing().what());
  EXPECT_FALSE(connects_.decide(result_, {})) << "connect() has returned";
  ConnectResult later;
  EXPECT_EQ(await(later).status().code(), Code::canceled);
  EXPECT_EQ(connects_.await_retry(1h, limit_, refused()).code(), Code::canceled);
  EXPECT_FALSE(connects_.close()) << "the second time";
}

TEST_F(PendingConnectsTest, ReturnsWhatWasDecided_WhenItIsClosedAfterwards) {
  const test::TestSession peer(1);
  EXPECT_TRUE(connects_.decide(result_, {}, peer.session()));
  connects_.close();
  EXPECT_EQ(test::take(await(result_)), peer.session());
}

TEST_F(PendingConnectsTest, EndsThePauseBeforeARetry_WhenItIsClosed) {
  for (int round = 0; round < 20; ++round) {
    PendingConnects connects;
    (void)during([&] { connects.close(); },
                 [&] { return connects.await_retry(1h, limit_, refused()); });
    EXPECT_EQ(connects.await_retry(1h, limit_, refused()).what(), "the Engine is closing");
    ASSERT_GT(limit_.left(), 10s);
  }
}

TEST_F(PendingConnectsTest, PausesNoLongerThanToTheDeadline) {
  EXPECT_TRUE(connects_.await_retry(1h, base::Deadline::in(5ms), refused()).ok());
  const auto begin = base::Clock::steady().now();
  EXPECT_TRUE(connects_.await_retry(20ms, limit_, refused()).ok());
  EXPECT_LT(base::Clock::steady().now() - begin, 10s);
}

TEST_F(PendingConnectsTest, ReturnsTheLastFailure_WhenNoTimeIsLeftForARetry) {
  const auto over = base::Deadline::in(0s);
  const Status status =
      connects_.await_retry(1ms, over, {Code::timed_out, Scope::peer, "nobody answers at /s"});
  EXPECT_EQ(status.code(), Code::unreachable);
  EXPECT_EQ(status.what(), "nobody answers at /s");
  const Status full =
      connects_.await_retry(1ms, over, {Code::no_resource, Scope::process, "the queue is full"});
  EXPECT_EQ(full.code(), Code::no_resource) << "another attempt may succeed";
  EXPECT_EQ(full.scope(), Scope::peer);
  EXPECT_EQ(full.what(), "the queue is full");
}

TEST_F(PendingConnectsTest, EndsItsWaits_WhenTheCallerIsInterrupted) {
  const InterruptCheck check([] { return true; });
  const Status status = await(result_).status();
  EXPECT_EQ(status.code(), Code::canceled);
  EXPECT_EQ(status.what().substr(0, 12), "interrupted:");
  EXPECT_FALSE(connects_.decide(result_, {}));
  EXPECT_EQ(connects_.await_retry(1h, limit_, refused()).what(), status.what());
}

}  // namespace pending_connects_test
}  // namespace linkspan::control
