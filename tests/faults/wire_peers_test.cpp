// Tests transfers by a network plugin whose peer is killed or stopped, or whose user ends them
// early: each becomes quiet with a true status, no byte comes late, and the Engine serves the next
// peer.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <tuple>

#include "tests/conformance/wire_pair.hpp"
#include "tests/faults/killer.hpp"
#include "tests/faults/usage.hpp"
#include "tests/support/fake_verbs/controls.hpp"

namespace linkspan::test {
namespace wire_peers_test {

constexpr std::uint64_t kBytes = 3u << 20, kParts = 48;
constexpr Block kAll{0, 0, kBytes};
/// Setting of the far end that keeps something in flight whenever the test checks.
constexpr const char* kSlow = "DELAY_US=500";
/// Threads that move the data connections of an Engine by TCP, at most.
constexpr unsigned kTcpThreads = 2;

class WirePeers : public ::testing::TestWithParam<std::tuple<int, Kind>> {
 protected:
  static void SetUpTestSuite() {
    ::setenv("LINKSPAN_TCP_STREAMS", std::to_string(kTcpThreads).c_str(), 1);
  }
  static void TearDownTestSuite() { ::unsetenv("LINKSPAN_TCP_STREAMS"); }
  void SetUp() override {
    if (Status status = kinds_by(wire(), {std::get<1>(GetParam())}); !status.ok())
      GTEST_SKIP() << status.to_string();
    // By RDMA the initiator's device alone decides how long a request takes.
    if (wire() == kVerbs) fake_verbs().set("late_us", 500);
  }
  void TearDown() override {
    if (wire() == kVerbs) fake_verbs().reset();
  }
  static FakeVerbs fake_verbs() {
    return FakeVerbs::find(file_beside_this_program("libfake_verbs.so").c_str());
  }
  static int wire() { return std::get<0>(GetParam()); }
  static MemoryOptions memory() { return {.kind = std::get<1>(GetParam()).name, .bytes = kBytes}; }
  static Engine open() { return take(Engine::open(wire_options(wire()))); }

  /// Writes and reads by turns, each of its own part.
  static std::vector<Transfer> start_all(const Peer& peer, const Region& here,
                                         const RemoteRegion& there, std::uint64_t first = 0,
                                         std::uint64_t parts = kParts) {
    std::vector<Transfer> started;
    for (std::uint64_t i = 0; i < kParts; ++i)
      started.push_back(take(move(peer, i % 2 == 0 ? Op::write : Op::read, here, there,
                                  part_of(kBytes, first + i, parts), by_wire(wire()))));
    return started;
  }
  /// Moves every byte both ways. `here` outlives the Engine.
  static void serves(Engine& engine, FarEngine& far, const Peer& peer, Held& here) {
    static int last = 0;
    const std::string name = "served " + std::to_string(++last);
    here = Held::make(engine, memory());
    far.add(name, memory());
    const RemoteRegion there = take(peer.lookup(name));
    here.fill(5);
    far.fill(name, 6);
    EXPECT_EQ(
        finished(move(peer, Op::write, here.region, there, kAll, by_wire(wire()))).to_string(),
        "ok");
    EXPECT_EQ(far.difference(name, 6, {{0, 5, 0, kBytes}}), "");
    far.fill(name, 7);
    EXPECT_EQ(finished(move(peer, Op::read, here.region, there, kAll, by_wire(wire()))).to_string(),
              "ok");
    EXPECT_EQ(here.difference(5, {{0, 7, 0, kBytes}}), "");
  }
};

TEST_P(WirePeers, EndAllWhenOneIsKilled) {
  Held here, beside;  // outlive the Engine
  Engine engine = open();
  here = Held::make(engine, memory());
  {
    FarEngine far(with_wire(wire(), {kSlow}));
    far.add("there", memory());
    const Peer peer = take(engine.connect(far.address()));
    const RemoteRegion there = take(peer.lookup("there"));
    auto transfers = start_all(peer, here.region, there, 0, 2 * kParts);
    EXPECT_EQ(transfers[0].wait(10s).to_string(), "ok");  // while transfers run
    far.process().signal(SIGSTOP);
    if (wire() == kVerbs) fake_verbs().set("rate", 20'000'000);  // else all end before the kill
    for (const Transfer& each : start_all(peer, here.region, there, kParts, 2 * kParts))
      transfers.push_back(each);
    far.process().kill();
    const auto limit = base::Deadline::after(base::Clock::steady(), 1s);
    std::size_t broken = 0;
    for (const Transfer& each : transfers) {
      const Status end = each.wait(limit.left());
      ASSERT_TRUE(each.done()) << "not quiet a second after the kill: " << engine.dump();
      EXPECT_TRUE(end.ok() || end.code() == Code::disconnected) << end.to_string();
      broken += end.ok() ? 0 : 1;
    }
    EXPECT_GT(broken, 0u) << "this test shows nothing";
    ASSERT_TRUE(is_down(peer, limit));
    const auto late = move(peer, Op::write, here.region, there, kAll, by_wire(wire()));
    EXPECT_EQ(finished(late).code(), Code::disconnected) << finished(late).to_string();
  }
  if (wire() == kVerbs) fake_verbs().reset();
  here.fill(8);
  FarEngine next(with_wire(wire()));
  serves(engine, next, take(engine.connect(next.address())), beside);
  EXPECT_EQ(here.difference(8), "");
  EXPECT_EQ(engine.deregister(here.region, 5s).to_string(), "ok");
}

/// Kills at random moments: during the handshake, while flows are made, during messages.
TEST_P(WirePeers, ThatAreKilledLeaveNothingBehind) {
  constexpr int kKills = 6, kWarm = 2;
  std::mt19937_64 random(std::random_device{}());
  Held here, target;
  Killer killer;
  Engine engine = open();
  must(engine.listen(listen_at(wire())));
  here = Held::make(engine, memory());
  target = Held::make(engine, memory());
  must(engine.publish("target", target.region));
  Usage before;
  for (int i = 0; i < kKills + kWarm; ++i) {
    if (i == kWarm) before = Usage::lowest(200ms, {});
    const bool early = i % 2 == 0;
    FarEngine victim(with_wire(wire()));
    for (const char* name : {"there", "theirs"}) victim.add(name, memory());
    victim.connect(engine.address());
    const Peer peer = take(engine.accept(10s));
    const RemoteRegion there = take(peer.lookup("there"));
    if (!early) must(finished(move(peer, Op::read, here.region, there, kAll, by_wire(wire()))));
    Strike strike;
    killer.kill(victim.process().pid(),
                base::Clock::steady().now() + std::chrono::microseconds(random() % 20000), strike);
    std::vector<Transfer> transfers;
    try {
      victim.churn(Op::write, "theirs", "target", kAll, by_wire(wire()).require);
      transfers = start_all(peer, here.region, there);
    } catch (const std::exception&) {  // by now it is dead
    }
    const auto met = base::Deadline::after(base::Clock::steady(), 10s);
    while (!strike.came() && !met.passed()) engine.progress();
    const auto limit = base::Deadline::after(base::Clock::steady(), 1s);
    for (const Transfer& each : transfers) {
      const Status end = each.wait(limit.left());
      ASSERT_TRUE(each.done()) << engine.dump();
      EXPECT_TRUE(end.ok() || end.code() == Code::disconnected) << end.to_string();
    }
    while (peer.state() != PeerState::gone && !limit.passed()) engine.progress();
    victim.process().kill();
  }
  // Each kill may abandon a connect, whose socket the plugin keeps: the ABI has no call to end one.
  if (wire() != kTcp) before.fds += kKills;
  // The second thread starts when a data connection comes while the first one still has another.
  if (wire() == kTcp) before.threads += kTcpThreads - 1;
  if (std::get<1>(GetParam()).kind == MemoryKind::device) before.allow_staging(3, 0);
  const Usage after = Usage::lowest(5s, before);
  EXPECT_EQ(after.above(before), 0u) << before.to_string() << "; after: " << after.to_string();
  target.fill(2);
  EXPECT_EQ(engine.deregister(target.region, 5s).to_string(), "ok");
  EXPECT_EQ(target.difference(2), "") << "a late byte";
}

/// By RDMA a stopped process is reached all the same (verbs_test.cpp).
class StoppedWirePeers : public WirePeers {};

TEST_P(StoppedWirePeers, OneThatIsStoppedHoldsWhatItHasAndNobodyElse) {
  for (const bool met : {false, true}) {  // their flows are there
    Held here, beside, again;
    FarEngine far(with_wire(wire())), other(with_wire(wire()));
    Engine engine = open();
    here = Held::make(engine, memory());
    far.add("there", memory());
    const Peer peer = take(engine.connect(far.address()));
    const RemoteRegion there = take(peer.lookup("there"));
    // By TCP what was canceled before a data connection came is quiet at once.
    if (met || wire() == kTcp) {
      for (const Op op : {Op::write, Op::read})
        EXPECT_EQ(finished(move(peer, op, here.region, there, kAll, by_wire(wire()))).to_string(),
                  "ok");
    }
    far.process().signal(SIGSTOP);
    // Different bytes for each, because all may be in flight at the same time.
    const std::uint64_t half = kBytes / 2, last = kBytes - 100;
    const TransferOptions soon = by_wire(wire(), 50ms);
    const Transfer moved[] = {
        take(move(peer, Op::write, here.region, there, {0, 0, half}, soon)),
        take(move(peer, Op::read, here.region, there, {half, half, last - half}, soon))};
    const Transfer canceled =
        take(move(peer, Op::read, here.region, there, {last, last, 100}, by_wire(wire())));
    for (const Transfer& each : moved) {
      EXPECT_EQ(each.wait(100ms).code(), Code::pending);
      EXPECT_EQ(each.cancel().code(), Code::pending);
    }
    EXPECT_EQ(canceled.cancel().code(), Code::pending);
    EXPECT_EQ(engine.deregister(here.region, 20ms).code(), Code::busy);
    serves(engine, other, take(engine.connect(other.address())), beside);
    for (const Transfer& each : moved) {
      EXPECT_FALSE(each.done()) << "a stopped peer can still touch the memory";
      EXPECT_EQ(each.status().code(), Code::pending);
    }
    far.process().signal(SIGCONT);
    for (const Transfer& each : moved) {
      const Status end = each.wait(10s);
      ASSERT_TRUE(each.done()) << engine.dump();
      EXPECT_TRUE(end.ok() || end.code() == Code::timed_out) << end.to_string();
    }
    const Status end = canceled.wait(10s);
    EXPECT_TRUE(end.ok() || end.code() == Code::canceled) << end.to_string();
    here.fill(8);
    far.fill("there", 9);
    EXPECT_EQ(engine.deregister(here.region, 5s).to_string(), "ok");
    serves(engine, far, peer, again);  // by the same flows
    EXPECT_EQ(here.difference(8), "");
    EXPECT_EQ(far.difference("there", 9), "");
  }
}

TEST_P(WirePeers, NoByteLandsAfterACancel) {
  Held here;
  std::deque<Held> beside;
  WirePair pair(wire(), {kSlow});
  here = Held::make(pair.engine, memory());
  pair.far.add("there", memory());
  const RemoteRegion there = pair.remote("there");
  std::size_t canceled = 0, moved = 0;
  // More rounds where all are faster than their cancels. What an RDMA device was given completes.
  const bool some_end = wire() != kVerbs;
  for (int round = 0; round < 3 || (some_end && canceled == 0 && round < 50); ++round) {
    auto transfers = start_all(pair.peer, here.region, there);
    if (round % 3 != 0) {
      EXPECT_EQ(transfers[4].wait(10s).to_string(), "ok");
    }
    std::ranges::reverse(transfers);  // the last one is the likeliest to be in flight
    for (const Transfer& each : transfers) {
      const Status asked = each.cancel();
      EXPECT_TRUE(asked.ok() || asked.code() == Code::pending) << asked.to_string();
      EXPECT_TRUE(!asked.ok() || each.done());
    }
    for (const Transfer& each : transfers) {
      const Status end = each.wait(10s);
      ASSERT_TRUE(each.done()) << pair.engine.dump();
      ASSERT_TRUE(end.ok() || end.code() == Code::canceled) << end.to_string();
      ++(end.ok() ? moved : canceled);
    }
    here.fill(8);  // the user has both memories back
    pair.far.fill("there", 9);
    serves(pair.engine, pair.far, pair.peer,
           beside.emplace_back());  // after them, by the same flows
    EXPECT_EQ(here.difference(8), "");
    EXPECT_EQ(pair.far.difference("there", 9), "");
  }
  EXPECT_TRUE(canceled > 0 || !some_end) << "each was faster than its cancel";
  EXPECT_GT(moved, 0u);
}

TEST_P(WirePeers, NoByteLandsAfterACloseOfEitherEnd) {
  Held here, target;
  FarEngine far(with_wire(wire(), {kSlow}));
  Engine engine = open();
  must(engine.listen(listen_at(wire())));
  here = Held::make(engine, memory());
  target = Held::make(engine, memory());
  must(engine.publish("target", target.region));
  for (const char* name : {"there", "source"}) far.add(name, memory());
  far.connect(engine.address());
  const Peer peer = take(engine.accept(10s));
  const RemoteRegion there = take(peer.lookup("there"));
  far.churn(Op::write, "source", "target", kAll, by_wire(wire()).require);
  const auto transfers = start_all(peer, here.region, there);
  EXPECT_EQ(transfers[0].wait(10s).to_string(), "ok");
  EXPECT_EQ(engine.close(10s).to_string(), "ok") << engine.dump();
  for (const Transfer& each : transfers) {
    EXPECT_TRUE(each.done());
    const Code code = each.status().code();
    // disconnected: the machine is slow, and close() has dropped a peer after 1 s.
    EXPECT_TRUE(code == Code::ok || code == Code::canceled || code == Code::disconnected)
        << each.status().to_string();
  }
  here.fill(8);
  target.fill(8);
  far.fill("there", 9);
  EXPECT_NE(far.rest(), "");  // the end of the peer
  EXPECT_EQ(here.difference(8), "");
  EXPECT_EQ(target.difference(8), "");
  EXPECT_EQ(far.difference("there", 9), "");
}

TEST_P(WirePeers, AnEnginesEndGivesAllBack) {
  const auto run = [] {
    Held here;
    WirePair pair(wire(), {kSlow});
    here = Held::make(pair.engine, memory());
    pair.far.add("there", memory());
    const auto transfers = start_all(pair.peer, here.region, pair.remote("there"));
    EXPECT_EQ(transfers[0].wait(10s).to_string(), "ok");
  };
  run();  // what is made once
  const Usage before = Usage::lowest(200ms, {});
  for (int i = 0; i < 2; ++i) run();
  const Usage after = Usage::lowest(5s, before);
  EXPECT_EQ(after.above(before), 0u) << before.to_string() << "; after: " << after.to_string();
}

std::string name_of_param(const ::testing::TestParamInfo<std::tuple<int, Kind>>& param) {
  return name_of_wire(std::get<0>(param.param)) + "_" + std::get<1>(param.param).name;
}
INSTANTIATE_TEST_SUITE_P(Every, WirePeers,
                         ::testing::Combine(::testing::ValuesIn(kWires),
                                            ::testing::Values(kKinds[3], kKinds[0])),
                         name_of_param);
INSTANTIATE_TEST_SUITE_P(Every, StoppedWirePeers,
                         ::testing::Combine(::testing::Values(kTcp, 7, 12, kStaged),
                                            ::testing::Values(kKinds[3], kKinds[0])),
                         name_of_param);

}  // namespace wire_peers_test
}  // namespace linkspan::test
