// Tests the number of data connections to a peer: two at first, more while bytes move, whichever
// side requests them, and never more than both allow.
#include <stdlib.h>

#include "tests/conformance/wire_pair.hpp"

namespace linkspan::test {
namespace tcp_streams_test {

constexpr std::uint64_t kBytes = 16u << 20;
constexpr Block kAll{0, 0, kBytes};

class TcpConnections : public ::testing::Test {
 protected:
  /// Sets the number that this side wants. with_wire() sets the other side's.
  static void want(unsigned streams) {
    ::setenv("LINKSPAN_TCP_STREAMS", std::to_string(streams).c_str(), 1);
  }
  void TearDown() override { ::unsetenv("LINKSPAN_TCP_STREAMS"); }

  /// Returns the number in explain(), also if none exists yet.
  static unsigned streams(const Peer& peer, const Region& here, const RemoteRegion& there) {
    const auto explained = take(peer.explain(Op::write, here, there, 1, kBytes));
    EXPECT_NE(explained.reason.find(" TCP data connections"), std::string::npos)
        << explained.reason;
    return static_cast<unsigned>(std::stoul(explained.reason));
  }
  static FarEngine far_that_wants(unsigned streams) {
    return FarEngine(
        {kListenAt + listen_at(kTcp), "LINKSPAN_TCP_STREAMS=" + std::to_string(streams)});
  }
};

TEST_F(TcpConnections, GrowWhileBytesMoveAndCarryEachByte) {
  want(8);
  for (const Op op : {Op::write, Op::read}) {
    Held here;
    FarEngine far = far_that_wants(4);
    Engine engine = take(Engine::open(wire_options(kTcp)));
    const Peer peer = take(engine.connect(far.address()));
    here = Held::make(engine, {.kind = "host", .bytes = kBytes});
    far.add("there", {.kind = "host", .bytes = kBytes});
    const RemoteRegion there = take(peer.lookup("there"));
    const Block small{1, 3, 1001};
    for (int i = 0; i < 50; ++i)
      ASSERT_EQ(finished(move(peer, op, here.region, there, small, by_wire(kTcp))).to_string(),
                "ok");
    EXPECT_EQ(streams(peer, here.region, there), 2u) << "a small job";
    const auto limit = base::Deadline::after(base::Clock::steady(), 30s);
    std::uint64_t seed = 10, moved = 0;
    // Twice more when there are all.
    for (int left = 2; left != 0 && !limit.passed();) {
      here.fill(++seed);
      far.fill("there", ++seed);
      ASSERT_EQ(finished(move(peer, op, here.region, there, kAll, by_wire(kTcp))).to_string(),
                "ok");
      moved += kBytes;
      if (op == Op::write)
        ASSERT_EQ(far.difference("there", seed, {{0, seed - 1, 0, kBytes}}), "");
      else
        ASSERT_EQ(here.difference(seed - 1, {{0, seed, 0, kBytes}}), "");
      const unsigned there_are = streams(peer, here.region, there);
      ASSERT_LE(there_are, 4u);
      left -= there_are == 4 ? 1 : 0;
    }
    EXPECT_FALSE(limit.passed()) << moved << " bytes";
    EXPECT_GE(moved, 32u << 20);
  }
}

/// The peer that has connected to this side only serves.
TEST_F(TcpConnections, GrowForTheOtherSideToo) {
  want(4);
  Held here;
  FarEngine far({"LINKSPAN_TCP_STREAMS=8"});
  Engine engine = take(Engine::open(wire_options(kTcp)));
  must(engine.listen(listen_at(kTcp)));
  here = Held::make(engine, {.kind = "host", .bytes = kBytes});
  far.add("there", {.kind = "host", .bytes = kBytes});
  far.connect(engine.address());
  const Peer peer = take(engine.accept(10s));
  const RemoteRegion there = take(peer.lookup("there"));
  const auto limit = base::Deadline::after(base::Clock::steady(), 30s);
  for (std::uint64_t i = 0; streams(peer, here.region, there) != 4 && !limit.passed(); ++i) {
    const Op op = i % 2 == 0 ? Op::write : Op::read;
    ASSERT_EQ(finished(move(peer, op, here.region, there, kAll, by_wire(kTcp))).to_string(), "ok");
  }
  EXPECT_EQ(streams(peer, here.region, there), 4u);
}

}  // namespace tcp_streams_test
}  // namespace linkspan::test
