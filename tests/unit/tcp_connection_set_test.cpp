// Tests the set of data connections to a peer: which one sends a frame, which frames wait for the
// first one, and which connections wake.
#include "transport/tcp/connection_set.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/tcp_pair.hpp"
#include "transport/tcp/data_connection.hpp"
#include "transport/tcp/data_connection_thread.hpp"

namespace linkspan::transport::tcp {
namespace tcp_connection_set_test {

using namespace std::chrono_literals;
using test::take, test::must;
using Bytes = std::vector<std::byte>;
using Ids = std::vector<std::uint64_t>;

Head frame(std::uint64_t id) { return {.type = FrameType::cancel, .id = id, .incarnation = 11}; }

class TcpConnectionSet : public ::testing::Test {
 protected:
  /// A connection and the peer's end of it.
  struct Line {
    Line() = default;
    Line(const Line&) = delete;
    Line& operator=(const Line&) = delete;
    ~Line() { connection->group().fail({Code::disconnected, Scope::peer, "the test ends"}); }

    std::unique_ptr<DataConnectionThread> thread;
    std::shared_ptr<DataConnection> connection;  // also the set's
    base::Fd peer;
    Bytes came;
  };
  TcpConnectionSet() : group_(std::make_shared<ConnectionGroup>(options())) {
    memory_->address = reinterpret_cast<std::uint64_t>(bytes_.data());
  }
  TcpConnectionSet(const TcpConnectionSet&) = delete;
  TcpConnectionSet& operator=(const TcpConnectionSet&) = delete;
  ~TcpConnectionSet() override { group_->fail({Code::disconnected, Scope::peer, "the test ends"}); }
  ConnectionGroupOptions options() {
    return {.published = &published_, .incarnation = 11, .chunk = kMinChunk};
  }
  /// Makes a connection that only the test polls. Its thread wakes for nothing.
  std::unique_ptr<Line> make() {
    auto line = std::make_unique<Line>();
    auto [ours, theirs] = test::tcp_pair();
    line->thread = take(DataConnectionThread::start());
    line->connection = std::make_shared<DataConnection>(
        group_, base::AuthenticatedSocket{std::move(ours), {}},
        DataConnectionOptions{.peer = 77, .staging_streams = &streams_}, *line->thread);
    line->peer = std::move(theirs);
    return line;
  }
  std::unique_ptr<Line> add() {
    auto line = make();
    set_.add(line->connection);
    return line;
  }
  /// Returns the numbers of the next frames: `count`, or what comes in 10 s.
  static Ids receive(Line& line, std::size_t count) {
    Ids ids;
    const auto limit = base::Deadline::in(10s);
    while (ids.size() < count) {
      const auto size = take(head_bytes(line.came));
      const Head head = size && line.came.size() >= *size
                            ? take(decode(std::span(line.came).first(*size)))
                            : Head{.data = ~std::uint64_t{0}};
      if (size && line.came.size() >= *size && line.came.size() - *size >= head.data) {
        ids.push_back(head.id);
        line.came.erase(line.came.begin(),
                        line.came.begin() + static_cast<std::ptrdiff_t>(*size + head.data));
        continue;
      }
      const auto more = net::receive_some(line.peer, 65536, limit);
      if (!more.ok()) return ids;
      const auto* data = reinterpret_cast<const std::byte*>(more->data());
      line.came.insert(line.came.end(), data, data + more->size());
    }
    return ids;
  }
  /// Sends what is queued at a connection that the test polls, and returns its `count` frames.
  static Ids sent(Line& line, std::size_t count) {
    while (line.connection->poll(true).moved) {
    }
    return receive(line, count);
  }
  /// Begins a put that the next connection to wake sends.
  void put(std::uint64_t id) {
    auto batch = std::make_shared<Outgoing>();
    batch->id = id;
    batch->use = RegionUse(memory_);
    batch->extents = {{memory_->address, 0, bytes_.size()}};
    group_->put(std::move(batch));
  }

  Bytes bytes_ = Bytes(100);
  const std::shared_ptr<WireRegion> memory_ = std::make_shared<WireRegion>();  // also the batches'
  WireRegionTable published_{nullptr};
  copy::StagingStreams streams_;
  const std::shared_ptr<ConnectionGroup> group_;  // also the connections'
  ConnectionSet set_;
};

TEST_F(TcpConnectionSet, KeepsFramesForTheFirstConnection_InTheirOrder) {
  for (const unsigned id : {1u, 2u, 3u}) EXPECT_EQ(set_.enqueue(frame(id)), nullptr);
  EXPECT_TRUE(set_.empty());
  const auto first = add(), second = add();
  EXPECT_EQ(set_.size(), 2u);
  EXPECT_EQ(sent(*first, 3), (Ids{1, 2, 3}));
  EXPECT_TRUE(second->connection->is_idle()) << "they were sent once";
}

TEST_F(TcpConnectionSet, DropsAFrameThatWaits_WhenItsBatchIsCanceled) {
  for (const unsigned id : {1u, 2u, 1u, 3u}) set_.enqueue(frame(id));
  set_.drop_pending(1);
  set_.drop_pending(9);
  const auto first = add();
  EXPECT_EQ(sent(*first, 2), (Ids{2, 3}));
}

TEST_F(TcpConnectionSet, EnqueuesOnAnIdleConnection_WhenThereIsOne) {
  const auto first = add(), second = add(), third = add();
  EXPECT_EQ(set_.find_idle(), first->connection);
  EXPECT_EQ(set_.enqueue(frame(1)), first->connection);
  EXPECT_EQ(set_.find_idle(), second->connection);
  EXPECT_EQ(set_.enqueue(frame(2)), second->connection);
  EXPECT_EQ(sent(*first, 1), (Ids{1}));
  EXPECT_EQ(set_.enqueue(frame(3)), first->connection) << "it is idle again";
  EXPECT_EQ(set_.enqueue(frame(4)), third->connection);
  EXPECT_EQ(set_.find_idle(), nullptr);
}

TEST_F(TcpConnectionSet, TakesTurns_WhenAllHaveSomethingToSend) {
  const auto first = add(), second = add(), third = add();
  for (std::uint64_t id = 1; id <= 3; ++id) set_.enqueue(frame(id));
  for (std::uint64_t id = 4; id <= 9; ++id) set_.enqueue(frame(id));
  EXPECT_EQ(sent(*first, 3), (Ids{1, 4, 7}));
  EXPECT_EQ(sent(*second, 3), (Ids{2, 5, 8}));
  EXPECT_EQ(sent(*third, 3), (Ids{3, 6, 9}));
}

/// A cancel must not overtake its request.
TEST_F(TcpConnectionSet, EnqueuesOnThePreferredOne_WhileItIsThere) {
  const auto first = add(), second = add();
  EXPECT_EQ(set_.enqueue(frame(1), second->connection.get()), second->connection);
  EXPECT_EQ(set_.enqueue(frame(2), second->connection.get()), second->connection)
      << "though the other one is idle";
  EXPECT_EQ(sent(*second, 2), (Ids{1, 2}));
  set_.remove(*second->connection);
  EXPECT_EQ(set_.size(), 1u);
  EXPECT_EQ(set_.enqueue(frame(3), second->connection.get()), first->connection);
  set_.remove(*second->connection);  // is not there
  EXPECT_EQ(set_.size(), 1u);
}

TEST_F(TcpConnectionSet, KeepsFramesAgain_WhenTheLastConnectionIsRemoved) {
  const auto first = add();
  set_.remove(*first->connection);
  EXPECT_TRUE(set_.empty());
  EXPECT_EQ(set_.find_idle(), nullptr);
  set_.wake(3);
  set_.wake_all();
  EXPECT_EQ(set_.enqueue(frame(1)), nullptr);
  const auto second = add();
  EXPECT_EQ(sent(*second, 1), (Ids{1}));
}

/// The busy one has no thread here, so only the other one can send the put.
TEST_F(TcpConnectionSet, WakesAnIdleConnection_BeforeABusyOne) {
  const auto busy = add(), idle = add();
  must(idle->thread->add(idle->connection));
  set_.enqueue(frame(1), busy->connection.get());
  for (std::uint64_t id = 2; id < 7; ++id) {
    put(id);
    set_.wake(1);
    ASSERT_EQ(receive(*idle, 1), (Ids{id}));
  }
}

TEST_F(TcpConnectionSet, WakesTheFirst_WhenSeveralAreIdle) {
  const auto first = add(), second = add();
  must(first->thread->add(first->connection));
  for (std::uint64_t id = 1; id < 6; ++id) {
    put(id);
    set_.wake(1);
    ASSERT_EQ(receive(*first, 1), (Ids{id}));
  }
}

TEST_F(TcpConnectionSet, WakesBusyOnesToo_WhenThereAreNoOthers) {
  const auto busy = add();
  must(busy->thread->add(busy->connection));
  for (std::uint64_t id = 1; id < 6; ++id) {
    set_.enqueue(frame(id));
    set_.wake(5);
    ASSERT_EQ(receive(*busy, 1), (Ids{id}));
  }
}

TEST_F(TcpConnectionSet, WakesAllOfThem) {
  const auto first = add(), second = add(), third = add();
  for (const auto* each : {&first, &second, &third})
    must((*each)->thread->add((*each)->connection));
  for (std::uint64_t id = 1; id < 6; ++id) {
    for (const auto* each : {&first, &second, &third})
      set_.enqueue(frame(id), (*each)->connection.get());
    set_.wake_all();
    for (const auto* each : {&first, &second, &third}) ASSERT_EQ(receive(**each, 1), (Ids{id}));
  }
}

TEST_F(TcpConnectionSet, SumsTheTrafficOfThoseThatAreThere) {
  EXPECT_EQ(set_.traffic(), 0u);
  const auto first = add(), second = add();
  const std::uint64_t before = set_.traffic();
  const std::string text(300, 'x');
  for (const auto* each : {&first, &second})
    must(net::send_all((*each)->peer, text, base::Deadline::in(10s)));
  const auto limit = base::Deadline::in(10s);
  while (set_.traffic() != before + 600 && !limit.passed()) {
  }
  EXPECT_EQ(set_.traffic(), before + 600);
  const std::uint64_t of_second = second->connection->traffic();
  set_.remove(*first->connection);
  EXPECT_EQ(set_.traffic(), of_second);
}

}  // namespace tcp_connection_set_test
}  // namespace linkspan::transport::tcp
