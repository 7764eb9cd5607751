// Tests transfers of several pairs of regions by each wire, with a shape of its own for each pair,
// and by two transports at once.
#include "tests/conformance/wire_pair.hpp"

namespace linkspan::test {
namespace engine_wire_regions_test {

constexpr std::uint64_t kMiB = 1u << 20;
const std::vector<Block> kBlocks = {
    {5, 3, 1}, {4097, 70001, 65537}, {300001, 200003, 0}, {200003, 400007, 77777}};
const std::vector<Block> kLarge = {{1, 2, 5 * kMiB}}, kByte = {{0, 0, 1}}, kNone = {{3, 4, 0}};
const std::vector<std::uint32_t> kOurs = {7, 0, 250, 2, 91}, kTheirs = {1, 299, 2, 0, 44};
constexpr std::uint64_t kPage = 1001;
const Strides kStrides{
    .bytes = 70, .local_base = 3, .remote_base = 5, .levels = {{{9, 100, 200}, {5, 1000, 3000}}}};

/// A pair of regions, and the shape with the blocks that it stands for.
struct ShapedPair {
  std::uint64_t bytes_here = 0, bytes_there = 0;
  Shape shape;
  std::vector<Block> blocks;
};

std::vector<ShapedPair> all_shapes() {
  std::vector<Block> of_pages, of_strides;
  for (std::size_t i = 0; i < kOurs.size(); ++i)
    of_pages.push_back({11 + kOurs[i] * kPage, 13 + kTheirs[i] * kPage, kPage});
  for (std::uint64_t i = 0; i < 9; ++i)
    for (std::uint64_t j = 0; j < 5; ++j)
      of_strides.push_back({3 + i * 100 + j * 1000, 5 + i * 200 + j * 3000, 70});
  return {{kMiB + 77, kMiB + 1, std::span(kBlocks), kBlocks},
          {301013, 303013, Pages{kPage, 11, 13, kOurs, kTheirs}, of_pages},
          {1, 1, std::span(kByte), kByte},
          {5 * kMiB + 3, 5 * kMiB + 2, std::span(kLarge), kLarge},
          {5001, 14001, kStrides, of_strides},
          {77, 79, std::span(kNone), kNone}};
}

std::string name(std::size_t pair) { return "region " + std::to_string(pair); }

/// Fills all regions, moves all pairs in one transfer, and verifies every byte of both sides. The
/// notification of a write is awaited first: all data must be there by then.
void expect_moved(FarEngine& far, const Peer& peer, Op op, std::vector<Held>& here,
                  const std::vector<RemoteRegion>& there, const std::vector<ShapedPair>& pairs,
                  TransferOptions options) {
  static std::uint64_t seed = 100;
  const std::uint64_t first = seed;
  std::vector<TransferPart> parts;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    here[i].fill(seed++);
    far.fill(name(i), seed++);
    parts.push_back({here[i].region, there[i], pairs[i].shape});
  }
  const std::string text = "after all " + std::to_string(first);
  if (op == Op::write) options.notification = std::as_bytes(std::span(text));
  const Transfer moved =
      take(op == Op::write ? peer.write(parts, options) : peer.read(parts, options));
  if (op == Op::write) {
    EXPECT_EQ(far.notifications(1), std::vector<std::string>{text});
  } else {
    EXPECT_EQ(moved.wait(30s).to_string(), "ok");
  }
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const std::uint64_t ours = first + 2 * i, theirs = ours + 1;
    std::vector<Expected> here_due, there_due;
    for (const Block& b : pairs[i].blocks) {
      if (op == Op::write)
        there_due.push_back({b.remote_offset, ours, b.local_offset, b.bytes});
      else
        here_due.push_back({b.local_offset, theirs, b.remote_offset, b.bytes});
    }
    EXPECT_EQ(here[i].difference(ours, here_due), "") << "pair " << i;
    EXPECT_EQ(far.difference(name(i), theirs, there_due), "") << "pair " << i;
  }
  EXPECT_EQ(moved.wait(30s).to_string(), "ok");
}

/// For each wire host memory and GPU memory on both sides.
class EngineWireRegions : public ::testing::TestWithParam<std::tuple<int, Kind>> {
 protected:
  void SetUp() override {
    if (Status status = kinds_by(wire(), {std::get<1>(GetParam())}); !status.ok())
      GTEST_SKIP() << status.to_string();
  }
  static int wire() { return std::get<0>(GetParam()); }
  static const char* kind() { return std::get<1>(GetParam()).name; }
};

TEST_P(EngineWireRegions, MoveBlocksPagesAndStridesTogether) {
  const std::vector<ShapedPair> pairs = all_shapes();
  std::vector<Held> here;  // outlives the Engine
  std::vector<RemoteRegion> there;
  WirePair pair(wire(), {"DELAY_US=500"});
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    here.push_back(Held::make(pair.engine, {.kind = kind(), .bytes = pairs[i].bytes_here}));
    pair.far.add(name(i), {.kind = kind(), .bytes = pairs[i].bytes_there});
    there.push_back(pair.remote(name(i)));
  }
  for (const Op op : {Op::write, Op::read, Op::write})
    expect_moved(pair.far, pair.peer, op, here, there, pairs, by_wire(wire()));
  there.clear();
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    EXPECT_EQ(pair.engine.deregister(here[i].region, 5s).to_string(), "ok");
    EXPECT_EQ(pair.far.deregister(name(i), 10s).to_string(), "ok");
  }
}

/// TransferOptions::require is of all pairs.
TEST_P(EngineWireRegions, AreRefusedTogether_WhenAPathIsRequiredThatNoneHas) {
  std::vector<Held> here;
  WirePair pair(wire());
  std::vector<TransferPart> parts;
  const Block all[] = {{0, 0, 1000}};
  for (std::size_t i = 0; i < 3; ++i) {
    here.push_back(Held::make(pair.engine, {.kind = kind(), .bytes = 1000}));
    pair.far.add(name(i), {.kind = kind(), .bytes = 1000});
    pair.far.fill(name(i), i);
    parts.push_back({here[i].region, pair.remote(name(i)), all});
  }
  const Status refused = pair.peer.write(parts, by_wire(other_than(wire()))).status();
  EXPECT_EQ(refused.code(), Code::unsupported) << refused.to_string();
  EXPECT_TRUE(refused.what().starts_with("pair 0: ")) << refused.to_string();
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(pair.far.difference(name(i), i), "");
}

INSTANTIATE_TEST_SUITE_P(Every, EngineWireRegions,
                         ::testing::Combine(::testing::ValuesIn(kWires),
                                            ::testing::Values(kKinds[3], kKinds[0])),
                         [](const auto& param) {
                           return name_of_wire(std::get<0>(param.param)) + "_" +
                                  std::get<1>(param.param).name;
                         });

/// GPUDirect-TCPX takes no memory that begins at an odd place, so the peer has no key of nccl_net
/// for it and the pair goes by TCP. There is no such world with `local`: it takes every kind of
/// memory of a peer of this host, and a peer that was met over TCP has no `local`.
TEST(EngineWireRegionsOnDevice, GoByTwoTransportsAtOnce) {
  if (Status status = need_gpus(1); !status.ok()) GTEST_SKIP() << status.to_string();
  constexpr std::uint64_t kOdd = Buffer::kGuard + 256;
  std::vector<ShapedPair> pairs = all_shapes();
  pairs.pop_back();
  std::vector<Held> here;
  std::vector<RemoteRegion> there;
  auto environment = with_wire(7, {"DELAY_US=500"});
  environment.push_back(std::string(kListenAt) + "tcp:127.0.0.1:0");
  FarEngine far(environment);
  Engine engine = take(Engine::open(wire_options(7)));
  const Peer peer = take(engine.connect(far.address()));
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const std::uint64_t guard = i % 2 == 0 ? Buffer::kGuard : kOdd;
    here.push_back(
        Held::make(engine, {.kind = "device0", .bytes = pairs[i].bytes_here, .guard = guard}));
    far.add(name(i), {.kind = "device0", .bytes = pairs[i].bytes_there, .guard = guard});
    there.push_back(take(peer.lookup(name(i))));
    EXPECT_EQ(take(peer.explain(Op::write, here[i].region, there[i], 1, 1)).path,
              i % 2 == 0 ? "nccl_net" : "tcp");
  }
  for (const Op op : {Op::write, Op::read, Op::write})
    expect_moved(far, peer, op, here, there, pairs, {});
  there.clear();
}

}  // namespace engine_wire_regions_test
}  // namespace linkspan::test
