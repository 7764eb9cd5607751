// Tests transfers to and from another process: every pair of kinds, every shape, every byte
// verified.
#include <cstdlib>
#include <tuple>

#include "tests/conformance/engine_world.hpp"

namespace linkspan::test {
namespace engine_test {

constexpr std::uint64_t kMiB = 1u << 20;

class EnginePairs : public WorldPairs {};

TEST_P(EnginePairs, MovesBlocksBothWays) {
  for (const std::uint64_t n : {std::uint64_t{1}, std::uint64_t{4097}, kMiB + 7})
    world().move(near(), far(), {{5, 3, n}, {kMiB + 300, kMiB + 1001, n}});
}

TEST_P(EnginePairs, MovesManySmallBlocks) {
  std::vector<Block> blocks;
  for (std::uint64_t i = 0; i < 512; ++i) blocks.push_back({i * 2048 + i % 7, i * 3001 + 5, 1500});
  world().move(near(), far(), blocks);
}

TEST_P(EnginePairs, ExplainsItself) {
  Pair& pair = world().pair();
  for (const Op op : {Op::write, Op::read}) {
    const auto why =
        take(pair.peer.explain(op, world().here(near()).region, world().remote(far()), 1, kMiB));
    EXPECT_NE(why.path.find('+'), std::string::npos) << why.path;
    EXPECT_NE(why.reason, "");
    EXPECT_TRUE(why.executor == "here" || why.executor == "peer" || why.executor == "both")
        << why.executor;
    for (const PathRefusal& refusal : why.refused) {
      EXPECT_NE(refusal.path, "");
      EXPECT_NE(refusal.reason, "") << refusal.path;
    }
    // Private memory of the peer is never the best that could be.
    if (far().kind == MemoryKind::host || far().kind == MemoryKind::pinned) {
      EXPECT_FALSE(why.refused.empty());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, EnginePairs,
                         ::testing::Combine(::testing::ValuesIn(kKinds),
                                            ::testing::ValuesIn(kKinds)),
                         name_of_pair);

/// A pair of kinds and a number of blocks that take that copier.
struct CopierCase {
  const char* copier;
  Kind near, far;
  std::uint64_t blocks;
};
void PrintTo(const CopierCase& c, std::ostream* out) { *out << c.copier; }

class EngineSizes : public ::testing::TestWithParam<CopierCase> {
 protected:
  void SetUp() override {
    const Status status = kinds_here({GetParam().near, GetParam().far});
    if (!status.ok()) GTEST_SKIP() << status.to_string();
    if (GetParam().copier != std::string("sm_kernel")) return;
    const Status kernels = take(topology()->activate(topology()->devices()[0].uuid))->kernels();
    if (!kernels.ok()) GTEST_SKIP() << "needs a build with kernels: " << kernels.what();
  }
};

/// Moves `size` bytes in the blocks of the case to the far side and back, between fresh regions.
void move_size(const CopierCase& c, std::uint64_t size, std::uint64_t count) {
  const std::uint64_t bytes = size + 64 * count;
  Held here;  // outlives the Engine
  Pair pair;
  pair.far.add("there", {.kind = c.far.name, .bytes = bytes, .guard = kMiB + 4096});
  here = Held::make(pair.engine, {.kind = c.near.name, .bytes = bytes, .guard = kMiB + 4096});
  const RemoteRegion there = pair.remote("there");
  std::vector<Block> blocks;
  const std::uint64_t each = size / count;
  for (std::uint64_t i = 0; i < count; ++i)
    blocks.push_back(
        {i * (each + 13) + 1, i * (each + 29) + 3, i + 1 == count ? size - i * each : each});
  here.fill(1);
  pair.far.fill("there", 2);
  EXPECT_EQ(finished(pair.peer.write(here.region, there, blocks)).to_string(), "ok");
  std::vector<Expected> due;
  for (const Block& b : blocks) due.push_back({b.remote_offset, 1, b.local_offset, b.bytes});
  EXPECT_EQ(pair.far.difference("there", 2, due), "");

  pair.far.fill("there", 3);
  EXPECT_EQ(finished(pair.peer.read(here.region, there, blocks)).to_string(), "ok");
  due.clear();
  for (const Block& b : blocks) due.push_back({b.local_offset, 3, b.remote_offset, b.bytes});
  EXPECT_EQ(here.difference(1, due), "");
  if (size > 4096) {
    const auto why = take(pair.peer.explain(Op::write, here.region, there, count, size));
    EXPECT_NE(why.path.find(std::string("+") + c.copier), std::string::npos) << why.path;
  }
}

TEST_P(EngineSizes, MovesEverySize) {
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{777}, std::uint64_t{4095},
        std::uint64_t{4096}, std::uint64_t{4097}, kMiB + 7}) {
    SCOPED_TRACE(size);
    move_size(GetParam(), size, GetParam().blocks);
  }
  // Seconds: in release builds only (cmake/tests.cmake).
  if (std::getenv("LINKSPAN_TEST_LARGE") != nullptr)
    move_size(GetParam(), 256 * kMiB, GetParam().blocks == 1 ? 1 : 4000);
}

INSTANTIATE_TEST_SUITE_P(Every, EngineSizes,
                         ::testing::Values(CopierCase{"copy_engine", kKinds[0], kKinds[1], 1},
                                           CopierCase{"sm_kernel", kKinds[0], kKinds[1], 64},
                                           CopierCase{"pageable", kKinds[3], kKinds[0], 1},
                                           CopierCase{"cpu_threads", kKinds[3], kKinds[4], 1},
                                           CopierCase{"cross_process", kKinds[3], kKinds[3], 1}),
                         [](const auto& param) { return std::string(param.param.copier); });

class EngineShapes : public ::testing::Test, public WithWorld {
 protected:
  static void SetUpTestSuite() { make_world(); }
  static void TearDownTestSuite() { end_world(); }
  const Kind host_ = kKinds[3], shared_ = kKinds[4];
};

TEST_F(EngineShapes, MovesThousandsOfMisalignedBlocks) {  // more than one batch holds
  std::vector<Block> blocks;
  for (std::uint64_t i = 0; i < 6000; ++i)
    blocks.push_back({i * 511 + 3, i * 509 + 1, 131 + i % 300});
  world().move(host_, shared_, blocks);
}

TEST_F(EngineShapes, MovesPages) {
  const std::uint32_t from[] = {3, 0, 500, 9, 42}, to[] = {700, 7, 0, 255, 11};
  const Pages pages{4096, 24, 8, from, to};
  Pair& pair = world().pair();
  world().here(host_).fill(1);
  pair.far.fill("shared", 2);
  EXPECT_EQ(finished(pair.peer.write(world().here(host_).region, world().remote(shared_), pages))
                .to_string(),
            "ok");
  std::vector<Expected> due;
  for (std::size_t i = 0; i < std::size(from); ++i)
    due.push_back({8 + to[i] * 4096ull, 1, 24 + from[i] * 4096ull, 4096});
  EXPECT_EQ(pair.far.difference("shared", 2, due), "");
}

TEST_F(EngineShapes, MovesBothDirectionsAtOnce) {
  Held target, source;
  Pair pair;
  must(pair.engine.listen());
  target = Held::make(pair.engine, {.kind = "shared"});
  source = Held::make(pair.engine, {.kind = "host"});
  must(pair.engine.publish("target", target.region));
  pair.far.add("target", {.kind = "shared"});
  pair.far.add("source", {.kind = "host"});
  const RemoteRegion there = pair.remote("target");
  source.fill(1);
  target.fill(2);
  pair.far.fill("source", 3);
  pair.far.fill("target", 4);
  pair.far.connect(pair.engine.address());
  std::vector<Transfer> ours;
  pair.far.start("source", "target", 20);
  for (std::uint64_t i = 0; i < 20; ++i) {
    const Block part = part_of(kMiB, i, 20);
    ours.push_back(take(pair.peer.write(source.region, there, std::span(&part, 1))));
  }
  for (const Transfer& each : ours) EXPECT_EQ(each.wait(30s).to_string(), "ok");
  for (const std::string& end : pair.far.ends()) EXPECT_EQ(end, "ok");
  EXPECT_EQ(target.difference(2, {{0, 3, 0, kMiB}}), "");
  EXPECT_EQ(pair.far.difference("target", 4, {{0, 1, 0, kMiB}}), "");
}

TEST_F(EngineShapes, TellsOfTheDataAfterIt) {
  Pair pair;
  pair.far.add("there", {.kind = "shared"});
  Held here = Held::make(pair.engine, {.kind = "host"});
  const RemoteRegion there = pair.remote("there");
  here.fill(1);
  pair.far.fill("there", 2);
  std::vector<Transfer> sent;
  for (const std::string text : {"0", "1"}) {
    const Block half = part_of(kMiB, sent.size(), 2);
    const TransferOptions options{.notification = std::as_bytes(std::span(text.data(), 1))};
    sent.push_back(take(pair.peer.write(here.region, there, std::span(&half, 1), options)));
  }
  // No thread waits here: the ProgressThread completes it.
  EXPECT_EQ(pair.far.notifications(2).size(), 2u);
  EXPECT_EQ(pair.far.difference("there", 2, {{0, 1, 0, kMiB}}), "");
  for (const Transfer& each : sent) EXPECT_EQ(each.wait(10s).to_string(), "ok");
  const std::string plain = "and a message alone";
  EXPECT_EQ(pair.peer.notify(std::as_bytes(std::span(plain.data(), plain.size()))).to_string(),
            "ok");
  EXPECT_EQ(pair.far.notifications(1), std::vector<std::string>{plain});
  EXPECT_EQ(pair.engine.close(10s).to_string(), "ok");
}

TEST_F(EngineShapes, MovesBetweenTwoEnginesOfOneProcess) {
  Held here, there;
  Engine one = take(Engine::open(engine_options("one")));
  Engine two = take(Engine::open(engine_options("two")));
  must(two.listen());
  here = Held::make(one, {.kind = "host"});
  there = Held::make(two, {.kind = "host"});
  must(two.publish("there", there.region));
  here.fill(1);
  there.fill(2);
  const Peer peer = take(one.connect(two.address()));
  {
    const RemoteRegion remote = take(peer.lookup("there"));
    const Block block{11, 13, kMiB - 13};
    const auto why = take(peer.explain(Op::write, here.region, remote, 1, kMiB - 13));
    EXPECT_TRUE(why.path.starts_with("same_process+")) << why.path;
    EXPECT_EQ(finished(peer.write(here.region, remote, std::span(&block, 1))).to_string(), "ok");
    EXPECT_EQ(there.difference(2, {{13, 1, 11, kMiB - 13}}), "");
  }
  EXPECT_EQ(two.deregister(there.region).to_string(), "ok");
}

TEST_F(EngineShapes, LetsGoOfARemoteRegionAfterItsEngine) {
  RemoteRegion last;
  {
    Pair pair;
    pair.far.add("there", {.kind = "shared"});
    last = pair.remote("there");
  }
  EXPECT_TRUE(last.valid());
  last = {};
  EXPECT_FALSE(last.valid());
}

class EngineGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const Status status = need_gpus(2);
    if (!status.ok()) GTEST_SKIP() << status.to_string();
  }
};

TEST_F(EngineGpu, MapsAGpuThatIsHiddenFromTheInitiator) {
  Held target;
  Pair pair({"CUDA_VISIBLE_DEVICES=1"});
  must(pair.engine.listen());
  target = Held::make(pair.engine, {.kind = "device0"});
  must(pair.engine.publish("target", target.region));
  target.fill(1);
  pair.far.add("source", {.kind = "device0"});  // the only one it sees: the second of the machine
  pair.far.fill("source", 2);
  pair.far.connect(pair.engine.address());
  EXPECT_TRUE(take(pair.far.explain("source", "target", kMiB)).starts_with("cuda_ipc+"));
  pair.far.start("source", "target", 2);
  EXPECT_EQ(pair.far.ends(), (std::vector<std::string>{"ok", "ok"}));
  EXPECT_EQ(target.difference(1, {{0, 2, 0, kMiB}}), "");
}

}  // namespace engine_test
}  // namespace linkspan::test
