// Tests CompletionQueue: each end is reported once, in order, to a user who polls its descriptor
// alone.
#include "linkspan/completion_queue.hpp"

#include <poll.h>

#include <algorithm>
#include <optional>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace completion_queue_test {

constexpr std::uint64_t kBytes = 4096, kCount = 1000;
using Cookies = std::vector<std::uint64_t>;

bool readable(const CompletionQueue& queue, Duration timeout = {}) {
  pollfd bell{.fd = queue.fd(), .events = POLLIN, .revents = 0};
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
  return ::poll(&bell, 1, static_cast<int>(limit.count())) == 1;
}

/// Returns the next `count` cookies, using poll(2) only; fewer if none comes for 10 s.
Cookies told(CompletionQueue& queue, std::size_t count) {
  Cookies all;
  while (all.size() < count && readable(queue, 10s)) {
    const Cookies some = queue.take();
    EXPECT_FALSE(some.empty()) << "readable for nothing";
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

class CompletionQueues : public ::testing::Test {
 protected:
  void SetUp() override {
    here_ = Held::make(pair_.engine, {.kind = "host", .bytes = kCount * kBytes});
    pair_.far.accept();
    pair_.far.add("there", {.kind = "shared", .bytes = kCount * kBytes});
    there_ = pair_.remote("there");
    queue_ = take(CompletionQueue::create());
  }
  /// Checks that nothing is reported twice.
  void TearDown() override {
    EXPECT_FALSE(readable(queue_));
    EXPECT_EQ(queue_.take(), Cookies{});
  }
  /// Returns a receive that is in flight until the far side sends.
  Transfer receive(std::uint64_t tag, Duration deadline = {}) {
    return take(pair_.peer.recv(tag, here_.at(tag * kBytes), kBytes,
                                TransferOptions{.deadline = deadline}));
  }
  void far_sends(std::uint64_t tag) {
    const Message message{
        .sends = true, .name = "there", .offset = tag * kBytes, .bytes = kBytes, .tag = tag};
    EXPECT_EQ(pair_.far.end(take(pair_.far.post(message))).code, "ok");
  }
  Transfer write(std::uint64_t index) {
    const Block block{index * kBytes, index * kBytes, kBytes};
    return take(pair_.peer.write(here_.region, there_, std::span(&block, 1)));
  }

  Held here_;  // outlives the Engine
  Pair pair_;
  RemoteRegion there_;
  CompletionQueue queue_;
};

TEST_F(CompletionQueues, TellsEachOnceInTheOrderOfTheEnds) {
  std::vector<Transfer> received;
  for (std::uint64_t tag = 0; tag < 4; ++tag) {
    received.push_back(receive(tag));
    must(queue_.add(received[tag], tag + 10));
  }
  EXPECT_FALSE(readable(queue_));
  EXPECT_EQ(queue_.take(), Cookies{});
  for (const std::uint64_t tag : {2u, 0u, 3u}) {
    far_sends(tag);
    EXPECT_EQ(received[tag].wait(20s).to_string(), "ok");
  }
  EXPECT_EQ(told(queue_, 3), (Cookies{12, 10, 13}));
  EXPECT_FALSE(readable(queue_));
  far_sends(1);
  EXPECT_EQ(told(queue_, 1), Cookies{11});
  EXPECT_EQ(received[1].bytes(), kBytes);
}

TEST_F(CompletionQueues, TellsAThousandToWhoOnlyPolls) {
  here_.fill(1);
  pair_.far.fill("there", 2);
  std::vector<Transfer> sent;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    sent.push_back(write(i));
    must(queue_.add(sent.back(), i));
  }
  std::vector<bool> seen(kCount);
  for (const std::uint64_t i : told(queue_, kCount)) {
    ASSERT_FALSE(seen[i]) << i << " was told twice";
    seen[i] = true;
    EXPECT_EQ(sent[i].status().to_string(), "ok");
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), static_cast<std::ptrdiff_t>(kCount));
  EXPECT_EQ(pair_.far.difference("there", 2, {{0, 1, 0, kCount * kBytes}}), "");
}

TEST_F(CompletionQueues, TellsAtOnceOfWhatIsQuiet) {
  const Transfer sent = write(0);
  EXPECT_EQ(sent.wait(20s).to_string(), "ok");
  must(queue_.add(sent, 1));
  EXPECT_TRUE(readable(queue_));
  EXPECT_EQ(queue_.take(), Cookies{1});
}

TEST_F(CompletionQueues, TellsOfEndsOfAllKinds) {
  const Transfer canceled = receive(1), late = receive(2, 50ms), orphan = receive(3);
  must(queue_.add(canceled, 1));
  must(queue_.add(late, 2));
  must(queue_.add(orphan, 3));
  EXPECT_EQ(canceled.cancel().to_string(), "ok");
  EXPECT_EQ(told(queue_, 2), (Cookies{1, 2}));
  EXPECT_EQ(canceled.status().code(), Code::canceled);
  EXPECT_EQ(late.status().code(), Code::timed_out);
  pair_.far.process().kill();
  EXPECT_EQ(told(queue_, 1), Cookies{3});
  EXPECT_EQ(orphan.status().code(), Code::disconnected);
}

TEST_F(CompletionQueues, TellsOfWhatEndsWithItsEngine) {
  const Transfer received = receive(1);
  must(queue_.add(received, 1));
  EXPECT_EQ(pair_.engine.close(10s).to_string(), "ok");
  EXPECT_EQ(queue_.take(), Cookies{1});
  EXPECT_EQ(received.status().code(), Code::canceled);
}

TEST_F(CompletionQueues, TakesATransferOnce) {
  const Transfer received = receive(1);
  CompletionQueue second = take(CompletionQueue::create());
  const auto refused = [](const Status& status, const std::string& named) {
    EXPECT_EQ(status.code(), Code::invalid_argument);
    EXPECT_NE(status.what().find(named), std::string::npos) << status.to_string();
  };
  must(queue_.add(received, 1));
  const std::string named = "transfer " + std::to_string(received.id()) + " was added";
  refused(queue_.add(received, 2), named);
  refused(second.add(received, 2), named);
  refused(queue_.add(Transfer(), 2), "no transfer");
  refused(CompletionQueue().add(received, 2), "no completion queue");
  far_sends(1);
  EXPECT_EQ(told(queue_, 1), Cookies{1});
  refused(queue_.add(received, 2), named);
  EXPECT_EQ(second.take(), Cookies{});
  EXPECT_EQ(CompletionQueue().take(), Cookies{});
  EXPECT_EQ(CompletionQueue().fd(), -1);
}

TEST_F(CompletionQueues, MayGoBeforeItsTransfers) {
  const Transfer alone = receive(1), shared = receive(2);
  {
    CompletionQueue dropped = take(CompletionQueue::create());
    must(dropped.add(alone, 1));
    CompletionQueue copy = queue_;
    must(copy.add(shared, 2));
  }
  far_sends(1);
  EXPECT_EQ(alone.wait(20s).to_string(), "ok");
  far_sends(2);
  EXPECT_EQ(told(queue_, 1), Cookies{2});
}

TEST_F(CompletionQueues, ServesSeveralEngines) {
  Held beside;  // outlives its Engine
  std::optional<Engine> other = take(Engine::open(engine_options("other")));
  beside = Held::make(*other, {.kind = "host", .bytes = kBytes});
  {
    const Peer peer = take(other->connect(pair_.far.address()));
    const RemoteRegion there = take(peer.lookup("there"));
    const Block block{0, 0, kBytes};
    must(queue_.add(take(peer.write(beside.region, there, std::span(&block, 1))), 1));
    must(queue_.add(write(1), 2));
    Cookies both = told(queue_, 2);
    std::sort(both.begin(), both.end());
    EXPECT_EQ(both, (Cookies{1, 2}));
    must(queue_.add(take(peer.recv(1, beside.at(0), kBytes)), 3));
  }
  other.reset();
  EXPECT_EQ(told(queue_, 1), Cookies{3}) << "it was canceled";
  must(queue_.add(write(2), 4));
  EXPECT_EQ(told(queue_, 1), Cookies{4});
}

}  // namespace completion_queue_test
}  // namespace linkspan::test
