// Tests the batches of an Endpoint over TCP that have not ended: what is reported of them, and what
// becomes of a peer that does not end a canceled one.
#include "transport/tcp/inflight_batches.hpp"

#include <gtest/gtest.h>

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/tcp_connection_group_fixture.hpp"
#include "transport/tcp/data_connection.hpp"
#include "transport/tcp/data_connection_thread.hpp"

namespace linkspan::transport::tcp {
namespace tcp_inflight_batches_test {

/// A peer that answers nothing. Time is what the test says, and no thread sends or receives.
class TcpInflight : public ::testing::Test {
 protected:
  TcpInflight() {
    auto [ours, theirs] = test::tcp_pair();
    connection_ = std::make_shared<DataConnection>(
        group_, base::AuthenticatedSocket{std::move(ours), {}},
        DataConnectionOptions{.peer = kPeer, .staging_streams = &streams_}, *thread_);
    peer_ = std::move(theirs);
  }
  TcpInflight(const TcpInflight&) = delete;
  TcpInflight& operator=(const TcpInflight&) = delete;
  ~TcpInflight() override {
    group_->fail({Code::disconnected, Scope::peer, "the test ends"});
    group_->on_connection_closed(*connection_);
  }
  void connect() { test::must(group_->add(connection_)); }
  /// Posts a put, and returns its batch.
  std::shared_ptr<TcpBatch> post(std::uint64_t cookie, const WireMapping* remote = nullptr) {
    auto batch = std::make_shared<Outgoing>();
    batch->id = batches_.next_id();
    batch->use = RegionUse(memory_);
    batch->extents = {{reinterpret_cast<std::uint64_t>(bytes_.data()), 0, bytes_.size()}};
    group_->put(batch);
    std::list<TcpInflightBatch> posted;
    posted.push_back({.cookie = cookie, .remote = remote, .batch = batch});
    batches_.add(posted);
    EXPECT_TRUE(posted.empty());
    return batch;
  }
  void check() { batches_.check_canceled(now_, "played"); }
  /// Checks every 100 ms.
  void pass(Duration time, bool traffic = false) {
    for (Duration step = 0ms; step < time; step += 100ms) {
      if (traffic) come();
      now_ += 100ms;
      check();
    }
  }
  /// Makes a byte come from the peer.
  void come() {
    const std::uint64_t before = group_->traffic();
    test::must(net::send_all(peer_, "x", base::Deadline::in(10s)));
    for (const auto limit = base::Deadline::in(10s);
         group_->traffic() == before && !limit.passed();) {
    }
  }
  std::string failure() const {
    const auto why = group_->failure();
    return why ? std::string(why->what()) : "";
  }

  Bytes bytes_ = Bytes(kMinChunk);
  const std::shared_ptr<WireRegion> memory_ = std::make_shared<WireRegion>();  // also the batches'
  WireRegionTable published_{nullptr};
  copy::StagingStreams streams_;
  const std::shared_ptr<ConnectionGroup> group_ = std::make_shared<ConnectionGroup>(
      ConnectionGroupOptions{.published = &published_});  // also the connection's
  const std::unique_ptr<DataConnectionThread> thread_ = take(DataConnectionThread::start());
  std::shared_ptr<DataConnection> connection_;  // also the group's
  base::Fd peer_;
  TcpInflightBatches batches_{*group_};
  Ends ends_;
  base::Time now_{1h};
};

constexpr const char *kSilent = "peer played has not answered for 5 s",
                     *kBusy =
                         "peer played has not ended a canceled transfer for 10 s, though bytes "
                         "came or went: connect to it again";

TEST_F(TcpInflight, ReportsEachBatchOnce_WhenItHasEnded) {
  const auto first = post(1), second = post(2), third = post(3);
  EXPECT_NE(first->id, second->id);
  EXPECT_FALSE(batches_.any_ended());
  EXPECT_EQ(batches_.complete(ends_), 0u);
  second->result.end({Code::corrupt, Scope::request, "a test"});
  third->result.end({});
  EXPECT_TRUE(batches_.any_ended());
  EXPECT_EQ(batches_.complete(ends_), 2u);
  EXPECT_EQ(batches_.complete(ends_), 0u);
  EXPECT_EQ(batches_.size(), 1u);
  ASSERT_EQ(ends_.all.size(), 2u);
  EXPECT_EQ(ends_.all.at(2).what(), "a test");
  EXPECT_TRUE(ends_.all.at(3).ok());
}

TEST_F(TcpInflight, EndsARemoteRegion_OnlyWhenItsOwnerHasDeregisteredIt) {
  const WireMapping refused{WireKey{}}, gone{WireKey{}};
  post(1, &refused)->result.end({Code::permission_denied, Scope::request, "a test"});
  post(2, &gone)->result.end({Code::unreachable, Scope::request, "a test"});
  EXPECT_EQ(batches_.complete(ends_), 2u);
  EXPECT_TRUE(refused.alive());
  EXPECT_FALSE(gone.alive());
}

TEST_F(TcpInflight, CancelsTheBatchesOfOneCookie_OrAll) {
  const auto first = post(1), other = post(2), second = post(1);  // no connection: they end at once
  batches_.cancel(1, now_);
  EXPECT_EQ(batches_.complete(ends_), 2u);
  EXPECT_EQ(ends_.all.at(1).code(), Code::canceled);
  EXPECT_FALSE(other->result.ended);
  batches_.cancel(7, now_);
  EXPECT_EQ(batches_.complete(ends_), 0u);
  const auto more = post(3);
  batches_.cancel(std::nullopt, now_);
  EXPECT_EQ(batches_.complete(ends_), 2u);
  EXPECT_EQ(batches_.size(), 0u);
}

TEST_F(TcpInflight, IsPatient_WhileNothingIsCanceled) {
  connect();
  post(1);
  pass(1min);
  EXPECT_EQ(failure(), "");
}

TEST_F(TcpInflight, FailsTheGroup_WhenASilentPeerDoesNotEndACanceledBatch) {
  connect();
  post(1);
  batches_.cancel(1, now_);
  pass(TcpInflightBatches::kSilence);
  EXPECT_EQ(failure(), "");
  pass(300ms);
  EXPECT_EQ(failure(), kSilent);
  EXPECT_EQ(group_->failure()->code(), Code::disconnected);
}

TEST_F(TcpInflight, FailsTheGroupLater_WhenOtherBytesCome) {
  connect();
  post(1);
  batches_.cancel(1, now_);
  pass(TcpInflightBatches::kCancelEnds - 100ms, true);
  EXPECT_EQ(failure(), "");
  pass(300ms, true);
  EXPECT_EQ(failure(), kBusy);
  EXPECT_EQ(group_->failure()->code(), Code::disconnected);
}

/// A second cancel gives the peer no more time.
TEST_F(TcpInflight, CountsFromTheFirstCancel) {
  connect();
  post(1);
  batches_.cancel(1, now_);
  pass(5s, true);
  batches_.cancel(std::nullopt, now_);
  pass(TcpInflightBatches::kCancelEnds - 5s + 300ms, true);
  EXPECT_EQ(failure(), kBusy);
}

TEST_F(TcpInflight, CountsSilenceFromTheLastByte) {
  connect();
  post(1);
  batches_.cancel(1, now_);
  pass(3s);
  come();
  pass(TcpInflightBatches::kSilence - 200ms);
  EXPECT_EQ(failure(), "");
  pass(500ms);
  EXPECT_EQ(failure(), kSilent);
}

TEST_F(TcpInflight, CountsAnew_WhenTheCanceledBatchHasEnded) {
  connect();
  const auto batch = post(1);
  batches_.cancel(1, now_);
  pass(4s);
  batch->result.end({});
  EXPECT_EQ(batches_.complete(ends_), 1u);
  pass(1min);
  post(2);
  batches_.cancel(2, now_);
  pass(4s);
  EXPECT_EQ(failure(), "");
}

/// The answer may lie in the socket, unread.
TEST_F(TcpInflight, GivesThePeerMoreTime_WhenThisProcessWasSuspended) {
  connect();
  post(1);
  batches_.cancel(1, now_);
  check();
  now_ += 1h;
  check();
  EXPECT_EQ(failure(), "");
  pass(TcpInflightBatches::kSilence - 100ms);
  EXPECT_EQ(failure(), "");
  pass(400ms);
  EXPECT_EQ(failure(), kSilent);
}

TEST_F(TcpInflight, GivesThePeerNotAllItsTimeAgain_WhenThisProcessWasSuspended) {
  connect();
  post(1);
  batches_.cancel(1, now_);
  check();
  now_ += 1h;
  check();
  pass(TcpInflightBatches::kSilence - 100ms, true);
  EXPECT_EQ(failure(), "");
  pass(400ms, true);
  EXPECT_EQ(failure(), kBusy);
}

}  // namespace tcp_inflight_batches_test
}  // namespace linkspan::transport::tcp
