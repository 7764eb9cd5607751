// Tests Engines that are connected by TCP, or also by a network plugin or RDMA: every pair of
// memory kinds, both ways, every shape, many at once, one- and two-sided.
#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>

#include "tests/conformance/wire_pair.hpp"
#include "tests/support/sanitizer_order.hpp"

namespace linkspan::test {
namespace engine_wire_test {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kBytes = 9 * kMiB;  // of more than one message

class EngineWire : public ::testing::TestWithParam<std::tuple<int, Kind, Kind>> {
 protected:
  void SetUp() override {
    if (Status status = kinds_by(wire(), {near(), far()}); !status.ok())
      GTEST_SKIP() << status.to_string();
  }
  static int wire() { return std::get<0>(GetParam()); }
  static Kind near() { return std::get<1>(GetParam()); }
  static Kind far() { return std::get<2>(GetParam()); }
};

/// Starts something that moves `blocks`, and checks that nothing else moves.
template <class Start>
void moves(FarEngine& far, Held& here, Op op, std::span<const Block> blocks, std::uint64_t seed,
           const Start& start) {
  here.fill(seed);
  far.fill("there", seed + 1);
  ASSERT_EQ(finished(start()).to_string(), "ok");
  std::vector<Expected> here_due, there_due;
  for (const Block& b : blocks)
    if (op == Op::write)
      there_due.push_back({b.remote_offset, seed, b.local_offset, b.bytes});
    else
      here_due.push_back({b.local_offset, seed + 1, b.remote_offset, b.bytes});
  EXPECT_EQ(here.difference(seed, here_due), "");
  EXPECT_EQ(far.difference("there", seed + 1, there_due), "");
}

TEST_P(EngineWire, MovesBlocksBothWays) {
  Held here;  // outlives the Engine
  WirePair pair(wire());
  here = Held::make(pair.engine, {.kind = near().name, .bytes = kBytes});
  pair.far.add("there", {.kind = far().name, .bytes = kBytes});
  RemoteRegion there = pair.remote("there");
  const Block blocks[] = {{5, 3, 1},
                          {4097, 70001, 65537},
                          {kBytes - (5u << 20), (3u << 20) + 1, (5u << 20) - 7},
                          {300000, kBytes - 100, 100}};
  for (const Op op : {Op::write, Op::read})
    moves(pair.far, here, op, blocks, op == Op::write ? 12 : 14, [&] {
      return op == Op::write ? pair.peer.write(here.region, there, blocks, by_wire(wire()))
                             : pair.peer.read(here.region, there, blocks, by_wire(wire()));
    });
  there = {};
  EXPECT_EQ(pair.engine.deregister(here.region).to_string(), "ok");
  EXPECT_EQ(pair.far.deregister("there", 10s).to_string(), "ok");
}

INSTANTIATE_TEST_SUITE_P(Every, EngineWire,
                         ::testing::Combine(::testing::ValuesIn(kWires),
                                            ::testing::Values(kKinds[0], kKinds[2], kKinds[3],
                                                              kKinds[4]),
                                            ::testing::ValuesIn(kKinds)),
                         [](const auto& param) {
                           return name_of_wire(std::get<0>(param.param)) + "_" +
                                  std::get<1>(param.param).name + "_to_" +
                                  std::get<2>(param.param).name;
                         });

/// For each version host memory and GPU memory on both sides.
class EngineWireAlike : public ::testing::TestWithParam<std::tuple<int, Kind>> {
 protected:
  void SetUp() override {
    if (Status status = kinds_by(wire(), {std::get<1>(GetParam())}); !status.ok())
      GTEST_SKIP() << status.to_string();
  }
  static int wire() { return std::get<0>(GetParam()); }
  static const char* kind() { return std::get<1>(GetParam()).name; }
};

TEST_P(EngineWireAlike, ReachesRemotePeersUnasked) {
  Held here;  // outlives the Engine
  auto environment = with_wire(wire());
  environment.push_back(std::string(kListenAt) + "tcp:127.0.0.1:0");
  FarEngine far(environment);
  Engine engine = take(Engine::open(wire_options(wire())));
  const Peer peer = take(engine.connect(far.address()));
  here = Held::make(engine, {.kind = kind(), .bytes = kBytes});
  far.add("there", {.kind = kind(), .bytes = kBytes});
  RemoteRegion there = take(peer.lookup("there"));
  const auto explained = take(peer.explain(Op::write, here.region, there, 1, kBytes));
  EXPECT_EQ(explained.path, path_of(wire()));
  const bool staged = wire() == kStaged && std::get<1>(GetParam()).kind == MemoryKind::device;
  EXPECT_EQ(explained.reason.find("staged in pinned memory") != std::string::npos, staged)
      << explained.reason;
  const Block block{7, 4097, kBytes - 5000};
  for (const Op op : {Op::write, Op::read})
    moves(far, here, op, {&block, 1}, op == Op::write ? 21 : 23,
          [&] { return move(peer, op, here.region, there, block, {}); });
  const auto goes_on = take(move(peer, Op::write, here.region, there, block, {}));
  far.process().kill();
  const Code end = finished(goes_on).code();
  EXPECT_TRUE(end == Code::disconnected || end == Code::ok) << name_of(end);
  there = {};
  EXPECT_EQ(engine.deregister(here.region).to_string(), "ok");
}

TEST_P(EngineWireAlike, MovesPagesAndStrides) {
  constexpr std::uint64_t kPage = 1000, kPages = 300;
  Held here;
  WirePair pair(wire());
  here = Held::make(pair.engine, {.kind = kind()});
  pair.far.add("there", {.kind = kind()});
  const RemoteRegion there = pair.remote("there");
  std::vector<std::uint32_t> from(kPages), to(kPages);
  std::iota(from.begin(), from.end(), 0u);
  std::iota(to.begin(), to.end(), 7u);
  std::mt19937_64 random(1);
  std::shuffle(from.begin(), from.end(), random);
  std::shuffle(to.begin(), to.end(), random);
  const Pages pages{kPage, 11, 13, from, to};
  const Strides strides{
      .bytes = 70, .local_base = 3, .remote_base = 5, .levels = {{{9, 100, 200}, {5, 1000, 3000}}}};
  std::vector<Block> of_pages, of_strides;
  for (std::size_t i = 0; i < kPages; ++i)
    of_pages.push_back({11 + from[i] * kPage, 13 + to[i] * kPage, kPage});
  for (std::uint64_t i = 0; i < 9; ++i)
    for (std::uint64_t j = 0; j < 5; ++j)
      of_strides.push_back({3 + i * 100 + j * 1000, 5 + i * 200 + j * 3000, 70});
  std::uint64_t seed = 20;
  for (const Op op : {Op::write, Op::read}) {
    const auto start = [&](const auto& shape) {
      return op == Op::write ? pair.peer.write(here.region, there, shape, by_wire(wire()))
                             : pair.peer.read(here.region, there, shape, by_wire(wire()));
    };
    moves(pair.far, here, op, of_pages, seed += 2, [&] { return start(pages); });
    moves(pair.far, here, op, of_strides, seed += 2, [&] { return start(strides); });
  }
}

/// A plugin makes none.
TEST_P(EngineWireAlike, MovesWithChecksumsByTcp) {
  Held here;
  WirePair pair(wire());
  here = Held::make(pair.engine, {.kind = kind(), .bytes = kBytes});
  pair.far.add("there", {.kind = kind(), .bytes = kBytes});
  const RemoteRegion there = pair.remote("there");
  TransferOptions options = by_wire(wire());
  options.checksum = true;
  std::vector<Block> blocks{{9, 8 * kMiB + 1, kMiB - 1}, {2 * kMiB + 3, 11, 5 * kMiB}};
  for (std::uint64_t i = 0; i < 700; ++i)
    blocks.push_back({kMiB + 64 + i * 16, 7 * kMiB + i * 24, 8});
  for (const Op op : {Op::write, Op::read}) {
    const auto start = [&] {
      return op == Op::write ? pair.peer.write(here.region, there, blocks, options)
                             : pair.peer.read(here.region, there, blocks, options);
    };
    if (wire() == kTcp) {
      moves(pair.far, here, op, blocks, op == Op::write ? 31 : 33, start);
      continue;
    }
    const Status refused = start().status();
    EXPECT_EQ(refused.code(), Code::unsupported);
    EXPECT_NE(refused.what().find(std::string(path_of(wire())) + " makes no checksums"),
              std::string::npos)
        << refused.to_string();
  }
}

/// Far more than are in flight, from both ends at once.
TEST_P(EngineWireAlike, MovesManyBothWaysAtOnce) {
  constexpr std::uint64_t kCount = 200;
  Held from, to, target;
  WirePair pair(wire());
  pair.far.accept();
  from = Held::make(pair.engine, {.kind = kind()});
  to = Held::make(pair.engine, {.kind = kind()});
  target = Held::make(pair.engine, {.kind = kind()});
  for (const char* name : {"from", "to", "source"}) pair.far.add(name, {.kind = kind()});
  from.fill(1);
  to.fill(2);
  target.fill(3);
  must(pair.engine.publish("target", target.region));
  pair.far.fill("from", 4);
  pair.far.fill("to", 5);
  pair.far.fill("source", 6);
  pair.far.start("source", "target", kCount, by_wire(wire()).require);
  std::vector<Transfer> moved;
  const RemoteRegion far_from = pair.remote("from"), far_to = pair.remote("to");
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const Block part = part_of(kMiB, i, kCount);
    moved.push_back(take(move(pair.peer, Op::write, from.region, far_to, part, by_wire(wire()))));
    moved.push_back(take(move(pair.peer, Op::read, to.region, far_from, part, by_wire(wire()))));
  }
  for (const Transfer& each : moved) ASSERT_EQ(each.wait(20s).to_string(), "ok");
  EXPECT_EQ(pair.far.ends(), std::vector<std::string>(kCount, "ok"));
  order_accesses(pair.engine);
  EXPECT_EQ(to.difference(2, {{0, 4, 0, kMiB}}), "");
  EXPECT_EQ(target.difference(3, {{0, 6, 0, kMiB}}), "");
  EXPECT_EQ(pair.far.difference("to", 5, {{0, 1, 0, kMiB}}), "");
}

TEST_P(EngineWireAlike, AWritesNotificationComesAfterItsData) {
  constexpr std::uint64_t kCount = 16;
  Held here, target;
  FarEngine far(with_wire(wire(), {"DELAY_US=1000"}));
  Engine engine = take(Engine::open(wire_options(wire())));
  must(engine.listen(listen_at(wire())));
  target = Held::make(engine, {.kind = kind()});
  must(engine.publish("target", target.region));
  here = Held::make(engine, {.kind = kind()});
  far.add("there", {.kind = kind()});
  const Peer peer = take(engine.connect(far.address()));
  const RemoteRegion there = take(peer.lookup("there"));
  here.fill(1);
  for (std::uint64_t i = 0; i < kCount; ++i) {
    far.fill("there", 2 + i);
    const std::string text = std::to_string(i);
    TransferOptions options = by_wire(wire());
    options.notification = std::as_bytes(std::span(text));
    const Block all{0, 0, kMiB};
    const Transfer moved = take(move(peer, Op::write, here.region, there, all, options));
    ASSERT_EQ(far.notifications(1), std::vector<std::string>{text});
    ASSERT_EQ(far.difference("there", 2 + i, {{0, 1, 0, kMiB}}), "");
    EXPECT_EQ(moved.wait(10s).to_string(), "ok");
  }
}

/// deregister() is called again while it answers `busy`. The registration stays while a request
/// uses it.
TEST_P(EngineWireAlike, ADeregisterBesideATransferIsBusyAndHarmsNothing) {
  Held here;
  WirePair pair(wire(), {"DELAY_US=20000"});
  here = Held::make(pair.engine, {.kind = kind(), .bytes = kBytes});
  pair.far.add("there", {.kind = kind(), .bytes = kBytes});
  RemoteRegion there = pair.remote("there");
  const Block all{0, 0, kBytes};
  here.fill(1);
  pair.far.fill("there", 2);
  const Transfer moved = take(move(pair.peer, Op::write, here.region, there, all, by_wire(wire())));
  const Status asked = pair.engine.deregister(here.region, 5ms);
  EXPECT_TRUE(asked.ok() || asked.code() == Code::busy) << asked.to_string();
  EXPECT_EQ(moved.wait(10s).to_string(), "ok");
  EXPECT_EQ(pair.far.difference("there", 2, {{0, 1, 0, kBytes}}), "");
  if (!asked.ok()) {
    EXPECT_EQ(pair.engine.deregister(here.region).to_string(), "ok");
  }
}

TEST_P(EngineWireAlike, WritesToTwoPeers) {
  Held here;
  FarEngine far[2] = {FarEngine(with_wire(wire())), FarEngine(with_wire(wire()))};
  Engine engine = take(Engine::open(wire_options(wire())));
  here = Held::make(engine, {.kind = kind(), .bytes = kBytes});
  here.fill(1);
  std::vector<Peer> peers;
  std::vector<RemoteRegion> remotes;
  for (std::size_t i = 0; i < 2; ++i) {
    far[i].add("there", {.kind = kind(), .bytes = kBytes - i});
    far[i].fill("there", 2);
    peers.push_back(take(engine.connect(far[i].address())));
    remotes.push_back(take(peers[i].lookup("there")));
  }
  const Block most{1, 0, kBytes - 1};
  for (const auto& each :
       engine.write_to_all(here.region, remotes, std::span(&most, 1), by_wire(wire())))
    EXPECT_EQ(finished(each).to_string(), "ok");
  for (FarEngine& each : far) EXPECT_EQ(each.difference("there", 2, {{0, 1, 1, kBytes - 1}}), "");
}

/// The memory is not registered, and either side comes first.
TEST_P(EngineWireAlike, SendsAndReceives) {
  constexpr std::uint64_t kSizes[] = {0, 1, 4097, 5 * kMiB + 7};
  Held here;
  WirePair pair(wire());
  pair.far.accept();
  here = Held::loose(pair.engine, {.kind = kind(), .bytes = 6 * kMiB});
  pair.far.add_loose("there", {.kind = kind(), .bytes = 6 * kMiB});
  std::uint64_t seed = 50;
  for (const std::uint64_t bytes : kSizes)
    for (const bool sends : {true, false}) {
      SCOPED_TRACE(std::to_string(bytes) + (sends ? " out" : " in"));
      here.fill(++seed);
      pair.far.fill("there", ++seed);
      const Message theirs{.sends = !sends, .name = "there", .offset = 5, .bytes = bytes};
      std::size_t number = 0;
      if (bytes % 2 == 0) number = take(pair.far.post(theirs));
      const Transfer ours = take(sends ? pair.peer.send(1, here.at(11), bytes, by_wire(wire()))
                                       : pair.peer.recv(1, here.at(11), bytes, by_wire(wire())));
      if (bytes % 2 != 0) number = take(pair.far.post(theirs));
      EXPECT_EQ(ours.wait(20s).to_string(), "ok") << pair.engine.dump();
      const FarEnd end = pair.far.end(number);
      EXPECT_EQ(end.code, "ok") << end.what;
      std::vector<Expected> here_due, there_due;
      if (sends)
        there_due.push_back({5, seed - 1, 11, bytes});
      else
        here_due.push_back({11, seed, 5, bytes});
      EXPECT_EQ(here.difference(seed - 1, here_due), "");
      EXPECT_EQ(pair.far.difference("there", seed, there_due), "");
    }
}

INSTANTIATE_TEST_SUITE_P(Every, EngineWireAlike,
                         ::testing::Combine(::testing::ValuesIn(kWires),
                                            ::testing::Values(kKinds[3], kKinds[0])),
                         [](const auto& param) {
                           return name_of_wire(std::get<0>(param.param)) + "_" +
                                  std::get<1>(param.param).name;
                         });

}  // namespace engine_wire_test
}  // namespace linkspan::test
