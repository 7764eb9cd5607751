// The kill matrix over TCP and RDMA: two Engines with three peers each, two of which are killed at
// random moments, round after round. The third peer keeps moving bytes and notices nothing.
#include <cstdlib>
#include <random>
#include <tuple>

#include "copy/staging.hpp"
#include "tests/conformance/wire_pair.hpp"
#include "tests/faults/killer.hpp"
#include "tests/faults/usage.hpp"
#include "transport/tcp/options.hpp"

namespace linkspan::test {
namespace wire_kills_test {

constexpr std::uint64_t kBytes = (1u << 20) + 77, kParts = 12;
constexpr Block kAll{0, 0, kBytes};
constexpr std::size_t kVictims = 2;
constexpr int kWarm = 2;

class WireKills : public ::testing::TestWithParam<std::tuple<int, Kind>> {
 protected:
  /// Fixes the number of data connections, so that the counts do not grow.
  static void SetUpTestSuite() { ::setenv("LINKSPAN_TCP_STREAMS", "2", 1); }
  static void TearDownTestSuite() { ::unsetenv("LINKSPAN_TCP_STREAMS"); }
  void SetUp() override {
    if (Status status = kinds_by(wire(), {kind()}); !status.ok())
      GTEST_SKIP() << status.to_string();
  }
  static int wire() { return std::get<0>(GetParam()); }
  static Kind kind() { return std::get<1>(GetParam()); }
  static int rounds() {
    const char* const set = std::getenv("LINKSPAN_KILL_ROUNDS");
    return set != nullptr ? std::atoi(set) : 6;
  }
  /// Returns the number of staging buffers that its connections may use, in both directions.
  static std::uint64_t slots_with_third() {
    const unsigned streams = take(transport::tcp::TcpSettings::read({})).connections;
    return std::uint64_t{2} * 2 * copy::Staging::kBuffersPerGpu * streams;
  }
  static MemoryOptions memory() { return {.kind = kind().name, .bytes = kBytes}; }
};

/// One of the two Engines, and its objects of the third peer.
struct Side {
  Side(int by, FarEngine& third, const MemoryOptions& memory, const std::string& name)
      : wire(by),
        engine(take(Engine::open(wire_options(wire, name)))),
        here(Held::make(engine, memory)),
        region(name) {
    third.add(region, memory);
    peer = take(engine.connect(third.address()));
    there = take(peer.lookup(region));
  }
  /// Moves every byte both ways with the third peer.
  void go_on(FarEngine& third, std::uint64_t seed) {
    here.fill(seed);
    third.fill(region, seed + 1);
    const Status written = finished(move(peer, Op::write, here.region, there, kAll, by_wire(wire)));
    ASSERT_EQ(written.to_string(), "ok");
    ASSERT_EQ(third.difference(region, seed + 1, {{0, seed, 0, kBytes}}), "");
    third.fill(region, seed + 2);
    const Status read = finished(move(peer, Op::read, here.region, there, kAll, by_wire(wire)));
    ASSERT_EQ(read.to_string(), "ok");
    ASSERT_EQ(here.difference(seed, {{0, seed + 2, 0, kBytes}}), "");
  }

  const int wire;
  Held outgoing{};  // outlives the Engine, for the victims
  Engine engine;
  Held here;
  std::string region;
  Peer peer;
  RemoteRegion there;
};

TEST_P(WireKills, LeaveNothingAndDisturbNoThird) {
  std::mt19937_64 random(std::random_device{}());
  Killer killer;
  FarEngine third(with_wire(wire()));
  Side sides[] = {Side(wire(), third, memory(), "one"), Side(wire(), third, memory(), "two")};
  for (Side& side : sides) side.outgoing = Held::make(side.engine, memory());
  Usage before;
  std::uint64_t broken = 0, seed = 1;
  // More rounds where all kills came too late.
  for (int round = 0; round < rounds() + kWarm || (broken == 0 && round < 100); ++round) {
    if (round == kWarm) before = Usage::lowest(200ms, {});
    std::vector<std::unique_ptr<FarEngine>> victims;
    std::vector<Peer> peers;
    std::vector<Transfer> transfers;
    Strike strikes[kVictims];
    std::uint64_t parts = 0;  // each of one transfer
    for (std::size_t i = 0; i < kVictims; ++i) {
      FarEngine& victim = *victims.emplace_back(std::make_unique<FarEngine>(with_wire(wire())));
      victim.add("there", memory());
      for (Side& side : sides) {
        const Peer peer = peers.emplace_back(take(side.engine.connect(victim.address())));
        const RemoteRegion there = take(peer.lookup("there"));
        for (std::uint64_t part = 0; part < kParts; ++part)
          transfers.push_back(take(move(
              peer, part % 2 == 0 ? Op::write : Op::read, side.outgoing.region, there,
              part_of(kBytes, parts++, kVictims * std::size(sides) * kParts), by_wire(wire()))));
      }
      killer.kill(victim.process().pid(),
                  base::Clock::steady().now() + std::chrono::microseconds(random() % 3000),
                  strikes[i]);
    }
    for (Side& side : sides) {
      side.go_on(third, seed += 3);
      if (HasFatalFailure()) return;
    }
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    for (const Transfer& each : transfers) {
      const Status end = each.wait(limit.left());
      ASSERT_TRUE(each.done()) << sides[0].engine.dump() << sides[1].engine.dump();
      EXPECT_TRUE(end.ok() || end.code() == Code::disconnected) << end.to_string();
      broken += end.ok() ? 0 : 1;
    }
    for (const Peer& peer : peers)
      while (peer.state() != PeerState::gone && !limit.passed())
        for (Side& side : sides) side.engine.progress();
    for (const Strike& strike : strikes) ASSERT_TRUE(strike.came());
    for (const auto& victim : victims) victim->process().kill();
  }
  if (kind().kind == MemoryKind::device) before.allow_staging(4, slots_with_third());
  // The simulated library keeps a pipe to each device of the third that it has told of an event.
  if (wire() == kVerbs) before.fds += 2 * std::size(sides);
  EXPECT_GT(broken, 0u) << "each kill came too late: this test shows nothing";
  const Usage after = Usage::lowest(5s, before);
  EXPECT_EQ(after.above(before), 0u) << before.to_string() << "; after: " << after.to_string();
  for (Side& side : sides) {
    side.outgoing.fill(2);
    EXPECT_EQ(side.engine.deregister(side.outgoing.region, 5s).to_string(), "ok");
    EXPECT_EQ(side.outgoing.difference(2), "") << "a late byte";
  }
}

INSTANTIATE_TEST_SUITE_P(Every, WireKills,
                         ::testing::Combine(::testing::Values(kTcp, kVerbs),
                                            ::testing::Values(kKinds[3], kKinds[0])),
                         [](const auto& param) {
                           return name_of_wire(std::get<0>(param.param)) + "_" +
                                  std::get<1>(param.param).name;
                         });

}  // namespace wire_kills_test
}  // namespace linkspan::test
