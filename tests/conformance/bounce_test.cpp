// Tests transfers between memories that neither side can map: GPU memory that the driver does not
// export, and host memory that the kernel does not copy. Every byte is verified.
// engine_death_test.cpp has deaths and cancels, stream_order_test.cpp has streams.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "tests/conformance/engine_world.hpp"
#include "tests/support/fake_cuda/controls.hpp"
#include "tests/support/sanitizer_order.hpp"

namespace linkspan::test {
namespace bounce_test {

constexpr std::uint64_t kMiB = 1u << 20;

struct BounceCase {
  const char* name;
  Kind near, far;
  std::uint64_t most;      ///< In one transfer: several chunks, mostly more than there are.
  bool exclusive = false;  ///< The far one.
};
void PrintTo(const BounceCase& c, std::ostream* out) { *out << c.name; }
constexpr BounceCase kCases[] = {{"hosts", kKinds[3], kKinds[3], 70 * kMiB, true},
                                 {"gpus", kUnshared[0], kUnshared[1], 70 * kMiB},
                                 {"one_gpu", kUnshared[0], kUnshared[0], 9 * kMiB},
                                 {"gpu_to_host", kUnshared[0], kKinds[3], 18 * kMiB},
                                 {"host_to_gpu", kKinds[3], kUnshared[1], 18 * kMiB}};

class EngineBounce : public ::testing::TestWithParam<BounceCase> {
 protected:
  void SetUp() override {
    const Status status = kinds_here({GetParam().near, GetParam().far});
    if (!status.ok()) GTEST_SKIP() << status.to_string();
  }
  void make(std::uint64_t bytes) {
    pair = std::make_unique<Pair>();
    here = Held::make(pair->engine, {.kind = GetParam().near.name, .bytes = bytes});
    add_there("there", bytes);
    there = pair->remote("there");
  }
  void add_there(const std::string& name, std::uint64_t bytes) {
    pair->far.add(name,
                  {.kind = GetParam().far.name,
                   .bytes = bytes,
                   .peers = {.read = true, .write = true, .exclusive = GetParam().exclusive}});
  }
  void TearDown() override {
    there = {};
    pair.reset();
  }
  Result<Transfer> submit(Op op, std::span<const Block> blocks,
                          const TransferOptions& options = {}) {
    return op == Op::write ? pair->peer.write(here.region, there, blocks, options)
                           : pair->peer.read(here.region, there, blocks, options);
  }
  /// Moves the blocks and verifies every byte of both sides.
  void move(Op op, std::span<const Block> blocks) {
    expect_moved(pair->far, "there", here, op, blocks, seeds += 2,
                 [&] { return submit(op, blocks); });
  }

  Held here;  // outlives the Engine
  std::unique_ptr<Pair> pair;
  RemoteRegion there;
  std::uint64_t seeds = 500;
};

TEST_P(EngineBounce, MovesEveryShapeBothWays) {
  make(6 * kMiB);
  std::vector<Block> small, large{{kMiB + 1, 3, 4 * kMiB + 11}, {6, 5 * kMiB + 5, 777}};
  for (std::uint64_t i = 0; i < 5000; ++i)  // more than one batch holds
    small.push_back({i * 1200 + 3, i * 1199 + 1, 131 + i % 1000});
  const Block one{5, 3, 1}, all{0, 0, 6 * kMiB};
  for (const Op op : {Op::write, Op::read}) {
    move(op, {});
    move(op, std::span(&one, 1));
    move(op, small);
    move(op, large);
    move(op, std::span(&all, 1));
  }
  std::vector<std::uint32_t> from(500), to(500);
  std::iota(from.begin(), from.end(), 7u);
  std::iota(to.rbegin(), to.rend(), 100u);
  here.fill(1);
  pair->far.fill("there", 2);
  const Pages pages{4096, 24, 8, from, to};
  EXPECT_EQ(finished(pair->peer.write(here.region, there, pages)).to_string(), "ok");
  std::vector<Expected> due;
  for (std::size_t i = 0; i < from.size(); ++i)
    due.push_back({8 + to[i] * 4096ull, 1, 24 + from[i] * 4096ull, 4096});
  EXPECT_EQ(pair->far.difference("there", 2, due), "");
}

TEST_P(EngineBounce, MovesChunkAfterChunk) {
  const std::uint64_t limit = (std::getenv("LINKSPAN_TEST_LARGE") != nullptr ? 70 : 34) * kMiB;
  const std::uint64_t bytes = std::min(GetParam().most, limit);
  make(bytes);
  const Block most{1, 0, bytes - 1};
  move(Op::write, std::span(&most, 1));
  move(Op::read, std::span(&most, 1));
}

TEST_P(EngineBounce, TellsItsWayAndIsAskedForAndAgainst) {
  make(kMiB);
  const Block all{0, 0, kMiB};
  for (const Op op : {Op::write, Op::read}) {
    const auto why = take(pair->peer.explain(op, here.region, there, 1, kMiB));
    EXPECT_TRUE(why.path.starts_with("bounce+")) << why.path;
    EXPECT_EQ(why.executor, "both");
    EXPECT_GT(why.expected_gbps, 0);
    EXPECT_EQ(why.refused.size(), 3u);
    for (const PathRefusal& refusal : why.refused) EXPECT_NE(refusal.reason, "") << refusal.path;
    const std::string text = "came";
    EXPECT_EQ(finished(submit(op, std::span(&all, 1),
                              {.notification = std::as_bytes(std::span(text.data(), text.size())),
                               .require = why.path}))
                  .to_string(),
              "ok");
    EXPECT_EQ(finished(submit(op, std::span(&all, 1), {.require = "!bounce"})).code(),
              Code::unsupported);
    EXPECT_EQ(finished(submit(op, std::span(&all, 1), {.require = "!cuda_ipc"})).to_string(), "ok");
  }
  EXPECT_EQ(pair->far.notifications(2), (std::vector<std::string>{"came", "came"}));
  // Nothing keeps what was copied.
  there = {};
  EXPECT_EQ(pair->far.deregister("there", 5s).to_string(), "ok");
  EXPECT_EQ(pair->engine.deregister(here.region, 5s).to_string(), "ok");
}

TEST_P(EngineBounce, TakesNoCtasWhereATransferAllowsNone) {
  make(kMiB);
  std::vector<Block> small;
  std::vector<Expected> due;
  for (std::uint64_t i = 0; i < 500; ++i) {
    small.push_back({i * 1009 + 1, i * 1013, 1001});
    due.push_back({i * 1013, 1, i * 1009 + 1, 1001});
  }
  const bool on_gpu = GetParam().near.kind == MemoryKind::device;
  here.fill(1);
  pair->far.fill("there", 2);
  const char* path = on_gpu ? "bounce+copy_engine" : "bounce+cpu_threads";
  EXPECT_EQ(finished(submit(Op::write, small, {.copy_ctas = 0, .require = path})).to_string(),
            "ok");
  EXPECT_EQ(pair->far.difference("there", 2, due), "");
}

TEST_P(EngineBounce, MovesBothDirectionsAtOnce) {
  const std::uint64_t bytes = 12 * kMiB, parts = 20;
  make(bytes);
  must(pair->engine.listen());
  Held target = Held::make(
      pair->engine, {.kind = GetParam().near.name,
                     .bytes = bytes,
                     .peers = {.read = true, .write = true, .exclusive = GetParam().exclusive}});
  must(pair->engine.publish("target", target.region));
  add_there("source", bytes);
  here.fill(1);
  target.fill(2);
  pair->far.fill("source", 3);
  pair->far.fill("there", 4);
  pair->far.connect(pair->engine.address());
  pair->far.start("source", "target", parts);
  std::vector<Transfer> ours;
  for (std::uint64_t i = 0; i < parts; ++i) {
    const Block part = part_of(bytes, i, parts);
    ours.push_back(take(submit(Op::write, std::span(&part, 1))));
  }
  for (const Transfer& each : ours) EXPECT_EQ(each.wait(30s).to_string(), "ok");
  for (const std::string& end : pair->far.ends()) EXPECT_EQ(end, "ok");
  test::order_accesses(pair->engine);
  EXPECT_EQ(target.difference(2, {{0, 3, 0, bytes}}), "");
  EXPECT_EQ(pair->far.difference("there", 4, {{0, 1, 0, bytes}}), "");
  there = {};
  pair.reset();  // before its memory
}

/// The peer stops during its bounce steps; memory that it may still touch belongs to the transfer.
TEST_P(EngineBounce, PastItsDeadlineItIsQuietWhenThePeerHasLetGo) {
  make(9 * kMiB);
  const Block all{0, 0, 9 * kMiB}, one{0, 0, 1};
  move(Op::write, std::span(&one, 1));  // the bounce memory is there
  for (const Op op : {Op::write, Op::read}) {
    pair->far.process().signal(SIGSTOP);
    const Transfer moved = take(submit(op, std::span(&all, 1), {.deadline = 30ms}));
    const Code after_deadline = moved.wait(150ms).code();
    EXPECT_EQ(after_deadline, moved.done() ? Code::timed_out : Code::pending);
    if (op == Op::read || !moved.done()) {  // else it ended before the peer was asked
      EXPECT_FALSE(moved.done());
      EXPECT_EQ(moved.cancel().code(), Code::pending);
    }
    pair->far.process().signal(SIGCONT);
    const Code end = moved.wait(10s).code();
    ASSERT_TRUE(moved.done());
    EXPECT_TRUE(end == Code::timed_out || end == Code::ok) << name_of(end);
    here.fill(8);
    pair->far.fill("there", 9);
    EXPECT_EQ(here.difference(8), "");
    EXPECT_EQ(pair->far.difference("there", 9), "");
    move(op, std::span(&all, 1));  // and all chunks are there again
  }
}

INSTANTIATE_TEST_SUITE_P(Every, EngineBounce, ::testing::ValuesIn(kCases),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(EngineBounceHost, WhereTheKernelRefusesToCopy) {
  Held target;  // outlives the Engine
  Pair pair({kNoCrossProcess});
  must(pair.engine.listen());
  target = Held::make(pair.engine, {.kind = "host"});
  must(pair.engine.publish("target", target.region));
  target.fill(1);
  pair.far.add("source", {.kind = "host"});
  pair.far.fill("source", 2);
  pair.far.connect(pair.engine.address());
  EXPECT_EQ(take(pair.far.explain("source", "target", kMiB)), "bounce+cpu_threads");
  pair.far.start("source", "target", 7);
  EXPECT_EQ(pair.far.ends(), std::vector<std::string>(7, "ok"));
  test::order_accesses(pair.engine);
  EXPECT_EQ(target.difference(1, {{0, 2, 0, kMiB}}), "");
}

class EngineBounceGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const Status status = need_gpus(2);
    if (!status.ok()) GTEST_SKIP() << status.to_string();
  }
  /// Moves both ways and verifies every byte; twice, because the first transfer finds the path.
  static void move(Pair& pair, Held& here, const RemoteRegion& there, std::uint64_t bytes) {
    const Block block{3, 1, bytes - 3};
    for (std::uint64_t seed = 10; seed < 50; seed += 20) {
      here.fill(seed);
      pair.far.fill("there", seed + 1);
      EXPECT_EQ(finished(pair.peer.write(here.region, there, std::span(&block, 1))).to_string(),
                "ok");
      EXPECT_EQ(pair.far.difference("there", seed + 1, {{1, seed, 3, bytes - 3}}), "");
      here.fill(seed + 2);
      pair.far.fill("there", seed + 3);
      EXPECT_EQ(finished(pair.peer.read(here.region, there, std::span(&block, 1))).to_string(),
                "ok");
      EXPECT_EQ(here.difference(seed + 2, {{3, seed + 3, 1, bytes - 3}}), "");
    }
  }
};

/// The peer cannot open what this side exports, and reports that.
TEST_F(EngineBounceGpu, MovesToAPeerWithoutADriver) {
  Held here;  // outlives the Engine
  Pair pair({"LINKSPAN_CUDA_LIBRARY=/none"});
  here = Held::make(pair.engine, {.kind = "device0", .bytes = 9 * kMiB});
  pair.far.add("there", {.kind = "host", .bytes = 9 * kMiB});
  const RemoteRegion there = pair.remote("there");
  move(pair, here, there, 9 * kMiB);
  const auto why = take(pair.peer.explain(Op::write, here.region, there, 1, kMiB));
  EXPECT_TRUE(why.path.starts_with("bounce+")) << why.path;
  EXPECT_NE(why.refused.back().reason.find("no CUDA driver"), std::string::npos)
      << why.refused.back().reason;
}

TEST_F(EngineBounceGpu, FallsBackToSharedMemory) {
  if (!FakeCuda::find()) GTEST_SKIP() << "needs the simulated driver";
  Held here;  // outlives the Engine
  Pair pair({"FAKE_CUDA_IPC=0"});
  here = Held::make(pair.engine, {.kind = "device0", .bytes = 9 * kMiB});
  pair.far.add("there", {.kind = "device1", .bytes = 9 * kMiB});
  const RemoteRegion there = pair.remote("there");
  move(pair, here, there, 9 * kMiB);
  const auto why = take(pair.peer.explain(Op::write, here.region, there, 1, kMiB));
  EXPECT_TRUE(why.path.starts_with("bounce+")) << why.path;
  EXPECT_EQ(why.refused.back().path, "bounce through GPU memory");
  EXPECT_NE(why.refused.back().reason, "");
}

TEST_F(EngineBounceGpu, MovesMessagesOfMemoryThatNobodyExports) {
  struct Ends {
    const char *near, *far;
  };
  std::uint64_t tag = 0;
  for (const Ends& ends :
       {Ends{"unshared0", "unshared1"}, Ends{"unshared0", "host"}, Ends{"host", "unshared1"}}) {
    SCOPED_TRACE(std::string(ends.near) + " " + ends.far);
    Held here;  // outlives the Engine
    Pair pair;
    pair.far.accept();
    here = Held::loose(pair.engine, {.kind = ends.near, .bytes = 9 * kMiB});
    pair.far.add_loose("there", {.kind = ends.far, .bytes = 9 * kMiB});
    for (const bool sends : {true, false}) {
      here.fill(1);
      pair.far.fill("there", 2);
      const std::uint64_t bytes = 8 * kMiB + 7;
      const auto number = take(pair.far.post(
          {.sends = !sends, .name = "there", .offset = 5, .bytes = bytes, .tag = ++tag}));
      const Transfer moved = take(sends ? pair.peer.send(tag, here.at(11), bytes)
                                        : pair.peer.recv(tag, here.at(11), bytes));
      EXPECT_EQ(moved.wait(20s).to_string(), "ok");
      EXPECT_EQ(pair.far.end(number).code, "ok");
      const Expected came{sends ? 5u : 11u, sends ? 1u : 2u, sends ? 11u : 5u, bytes};
      EXPECT_EQ(sends ? pair.far.difference("there", 2, {came}) : here.difference(1, {came}), "");
    }
  }
}

}  // namespace bounce_test
}  // namespace linkspan::test
