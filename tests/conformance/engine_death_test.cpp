// Tests peers that are killed or stopped, and transfers that end early: each transfer becomes quiet
// with a true status, and the Engine serves the next peer.
#include <signal.h>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace engine_death_test {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr Block kAll{0, 0, kMiB};
constexpr std::uint64_t kTraffic = 12 * kMiB, kParts = 48;

/// Each way that a byte can take.
struct RouteCase {
  const char* name;
  Kind near, far;
  bool exclusive = false;
};
void PrintTo(const RouteCase& c, std::ostream* out) { *out << c.name; }

constexpr RouteCase kRoutes[] = {
    {"cpu_threads", kKinds[3], kKinds[4]},       {"cross_process", kKinds[3], kKinds[3]},
    {"by_the_peer", kKinds[4], kKinds[3], true}, {"cuda_ipc", kKinds[0], kKinds[1]},
    {"cuda_ipc_pageable", kKinds[3], kKinds[0]}, {"cuda_ipc_by_the_peer", kKinds[0], kKinds[3]},
    {"bounce", kKinds[3], kKinds[3], true},      {"bounce_gpus", kUnshared[0], kUnshared[1]},
    {"bounce_to_gpu", kKinds[3], kUnshared[1]},
};

/// Checks that the Engine moves data to and from a process that it has not met before.
void serves_another(Engine& engine) {
  FarEngine third;
  third.add("third", {.kind = "shared"});
  third.fill("third", 5);
  Held here = Held::make(engine, {.kind = "host"});
  here.fill(6);
  {
    const Peer peer = take(engine.connect(third.address()));
    const RemoteRegion remote = take(peer.lookup("third"));
    EXPECT_EQ(finished(peer.write(here.region, remote, std::span(&kAll, 1))).to_string(), "ok");
    EXPECT_EQ(third.difference("third", 5, {{0, 6, 0, kMiB}}), "");
  }
  EXPECT_EQ(engine.deregister(here.region).to_string(), "ok");
}

class EngineRoutes : public ::testing::TestWithParam<RouteCase> {
 protected:
  void SetUp() override {
    const Status status = kinds_here({GetParam().near, GetParam().far});
    if (!status.ok()) GTEST_SKIP() << status.to_string();
  }
  static MemoryOptions far_memory() {
    return {.kind = GetParam().far.name,
            .bytes = kTraffic,
            .peers = {.read = true, .write = true, .exclusive = GetParam().exclusive}};
  }
};

TEST_P(EngineRoutes, EndsAllWhenThePeerIsKilled) {
  Held here;  // outlives the Engine
  Pair pair;
  here = Held::make(pair.engine, {.kind = GetParam().near.name, .bytes = kTraffic});
  pair.far.add("there", far_memory());
  {
    const RemoteRegion there = pair.remote("there");
    std::vector<Transfer> transfers;
    for (std::uint64_t i = 0; i < kParts; ++i) {
      const Block part = part_of(kTraffic, i, kParts);
      auto moved = i % 2 == 0 ? pair.peer.write(here.region, there, std::span(&part, 1))
                              : pair.peer.read(here.region, there, std::span(&part, 1));
      transfers.push_back(take(std::move(moved)));
    }
    pair.far.process().kill();
    const auto limit = base::Deadline::after(base::Clock::steady(), 1s);
    for (const Transfer& each : transfers) {
      const Status end = each.wait(limit.left());
      ASSERT_TRUE(each.done()) << "not quiet a second after the peer's death: "
                               << pair.engine.dump();
      EXPECT_TRUE(end.ok() || end.code() == Code::disconnected) << end.to_string();
    }
    ASSERT_TRUE(is_down(pair.peer, limit));
    const auto late = pair.peer.write(here.region, there, std::span(&kAll, 1));
    EXPECT_EQ(finished(late).code(), Code::disconnected) << finished(late).to_string();
  }
  here.fill(7);
  serves_another(pair.engine);
  EXPECT_EQ(here.difference(7), "");  // nothing came late
  EXPECT_EQ(pair.engine.deregister(here.region).to_string(), "ok");
}

TEST_P(EngineRoutes, SurvivesTheDeathOfTheInitiator) {
  FarEngine survivor;
  survivor.add("target", far_memory());
  {
    FarEngine initiator;
    initiator.add("source", {.kind = GetParam().near.name, .bytes = kTraffic});
    initiator.connect(survivor.address());
    initiator.start("source", "target", kParts);
    initiator.process().kill();
  }
  EXPECT_EQ(survivor.deregister("target", 2s).to_string(), "ok");
  survivor.add("again", {.kind = "shared"});
  survivor.fill("again", 2);
  FarEngine next;
  next.add("source", {.kind = "host"});
  next.fill("source", 3);
  next.connect(survivor.address());
  next.start("source", "again", 1);
  EXPECT_EQ(next.ends(), std::vector<std::string>{"ok"});
  EXPECT_EQ(survivor.difference("again", 2, {{0, 3, 0, kMiB}}), "");
}

TEST_P(EngineRoutes, NoByteLandsAfterACancel) {
  Held here;
  Pair pair;
  here = Held::make(pair.engine, {.kind = GetParam().near.name, .bytes = kTraffic});
  pair.far.add("there", far_memory());
  const RemoteRegion there = pair.remote("there");
  for (const Op op : {Op::write, Op::read}) {
    std::vector<Transfer> transfers;
    for (std::uint64_t i = 0; i < kParts; ++i) {
      const Block part = part_of(kTraffic, i, kParts);
      auto moved = op == Op::write ? pair.peer.write(here.region, there, std::span(&part, 1))
                                   : pair.peer.read(here.region, there, std::span(&part, 1));
      transfers.push_back(take(std::move(moved)));
    }
    for (const Transfer& each : transfers) {
      const Status asked = each.cancel();
      EXPECT_TRUE(asked.ok() || asked.code() == Code::pending) << asked.to_string();
      if (asked.ok()) {
        EXPECT_TRUE(each.done());
      }
    }
    for (const Transfer& each : transfers) {
      const Status end = each.wait(10s);
      ASSERT_TRUE(each.done());
      EXPECT_TRUE(end.ok() || end.code() == Code::canceled) << end.to_string();
      EXPECT_EQ(each.status().code(), end.code());
      EXPECT_TRUE(each.cancel().ok());
    }
    here.fill(8);  // the user has both memories back, and uses them
    pair.far.fill("there", 9);
    EXPECT_EQ(here.difference(8), "");
    EXPECT_EQ(pair.far.difference("there", 9), "");
  }
}

TEST_P(EngineRoutes, NoByteLandsAfterTheOwnerHasClosed) {
  Held here;  // outlives the Engine
  FarEngine far;
  far.add("source", far_memory());
  Engine engine = take(Engine::open(engine_options("owner")));
  must(engine.listen());
  here = Held::make(engine, {.kind = GetParam().near.name, .bytes = kTraffic});
  must(engine.publish("here", here.region));
  far.connect(engine.address());
  far.churn(Op::write, "source", "here", {0, 0, kTraffic});
  std::this_thread::sleep_for(20ms);  // while transfers run
  EXPECT_EQ(engine.close(10s).to_string(), "ok");
  here.fill(7);  // the memory is the user's
  EXPECT_NE(far.rest(), "");
  EXPECT_EQ(here.difference(7), "");
}

INSTANTIATE_TEST_SUITE_P(Every, EngineRoutes, ::testing::ValuesIn(kRoutes),
                         [](const auto& param) { return std::string(param.param.name); });

/// The owner alone can copy, and is asked again as soon as it has done so.
TEST(EngineClose, NoByteLandsAtAPeerThatHasHeardOfIt) {
  constexpr std::uint64_t kBytes = 64 * kMiB, kTail = 4096;
  for (int round = 0; round < 4; ++round) {
    Held here;  // outlives the Engine
    FarEngine far;
    far.add("into", {.kind = "shared", .bytes = kBytes});
    Engine engine = take(Engine::open(engine_options("owner")));
    must(engine.listen());
    here = Held::make(engine, {.kind = "host", .bytes = kBytes, .peers = {true, true, true}});
    must(engine.publish("here", here.region));
    here.fill(1);
    far.fill("into", 2);
    far.fill("into", 1, {0, kBytes});  // so it has these bytes whatever was read
    far.connect(engine.address());
    far.churn(Op::read, "into", "here", {0, 0, kBytes});
    std::this_thread::sleep_for(30ms);
    std::thread closing([&] { EXPECT_EQ(engine.close(10s).to_string(), "ok"); });
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    while (far.wrong().empty() && !limit.passed()) {
    }
    far.fill("into", 2, {kBytes - kTail, kTail});  // its user's again
    closing.join();
    EXPECT_NE(far.rest(), "");
    EXPECT_EQ(far.difference("into", 2, {{0, 1, 0, kBytes - kTail}}), "");
  }
}

/// A peer that alone can execute, and that is stopped meanwhile.
class EngineStopped : public ::testing::Test {
 protected:
  void SetUp() override {
    here_ = Held::make(pair_.engine, {.kind = "shared"});
    pair_.far.add("there", {.kind = "host", .peers = {true, true, true}});
    there_ = pair_.remote("there");
    here_.fill(1);
    pair_.far.fill("there", 2);
  }
  void stop() { pair_.far.process().signal(SIGSTOP); }
  void go_on() { pair_.far.process().signal(SIGCONT); }
  Result<Transfer> write(const Block& block, const TransferOptions& options = {}) {
    return pair_.peer.write(here_.region, there_, std::span(&block, 1), options);
  }

  Held here_;  // outlives the Engine
  Pair pair_;
  RemoteRegion there_;
};

TEST_F(EngineStopped, ATransferPastItsDeadlineStaysPendingUntilItIsQuiet) {
  stop();
  const Transfer moved = take(write(kAll, {.deadline = 50ms}));
  EXPECT_EQ(moved.wait(300ms).code(), Code::pending);
  EXPECT_FALSE(moved.done()) << "a stopped peer can still touch the memory";
  EXPECT_EQ(moved.status().code(), Code::pending);
  EXPECT_EQ(moved.cancel().code(), Code::pending);
  EXPECT_NE(pair_.engine.dump(), "");
  go_on();
  const Status end = moved.wait(10s);
  ASSERT_TRUE(moved.done());
  EXPECT_TRUE(end.ok() || end.code() == Code::timed_out) << end.to_string();
  pair_.far.fill("there", 3);
  EXPECT_EQ(pair_.far.difference("there", 3), "");
}

TEST_F(EngineStopped, QueuesUpToItsLimitAndThenPushesBack) {
  stop();
  std::vector<Transfer> queued;
  Status full;
  while (full.ok()) {
    const std::uint64_t at = queued.size();
    auto moved = write({at, at, 1});
    full = moved.status();
    if (moved.ok()) queued.push_back(*moved);
    ASSERT_LE(queued.size(), 16384u);
  }
  EXPECT_EQ(full.code(), Code::no_resource) << full.to_string();
  EXPECT_EQ(queued.size(), 16384u);
  go_on();
  for (const Transfer& each : queued) ASSERT_EQ(each.wait(30s).to_string(), "ok");
  EXPECT_EQ(pair_.far.difference("there", 2, {{0, 1, 0, queued.size()}}), "");
  EXPECT_EQ(finished(write({0, 0, 1})).to_string(), "ok");
}

TEST_F(EngineStopped, AKilledPeerFreesWhatItHeld) {
  stop();
  const Transfer moved = take(write(kAll));
  EXPECT_EQ(moved.wait(20ms).code(), Code::pending);
  EXPECT_EQ(pair_.engine.deregister(here_.region, 20ms).code(), Code::busy);
  EXPECT_EQ(pair_.engine.close(20ms).code(), Code::pending);
  pair_.far.process().kill();
  const Status end = moved.wait(1s);
  ASSERT_TRUE(moved.done());
  EXPECT_TRUE(end.code() == Code::disconnected || end.code() == Code::canceled) << end.to_string();
  EXPECT_EQ(pair_.engine.close(1s).to_string(), "ok");
}

}  // namespace engine_death_test
}  // namespace linkspan::test
