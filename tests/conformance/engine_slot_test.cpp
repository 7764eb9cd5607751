// Tests small transfers between GPU memory here and private host memory of the peer: in two copies
// of this process, through a pinned slot. Nothing waits for the peer. Every byte is verified.
#include <signal.h>

#include <tuple>

#include "tests/conformance/engine_world.hpp"

namespace linkspan::test {
namespace engine_slot_test {

constexpr std::uint64_t kMiB = 1u << 20, kMost = 64u << 10;
constexpr Kind kNear = kKinds[0];

class EngineSlot : public ::testing::TestWithParam<std::tuple<Op, Kind>> {
 protected:
  static Op op() { return std::get<0>(GetParam()); }
  void SetUp() override {
    const Kind far = std::get<1>(GetParam());
    const Status status = kinds_here({kNear, far});
    if (!status.ok()) GTEST_SKIP() << status.to_string();
    pair = std::make_unique<Pair>();
    here = Held::make(pair->engine, {.kind = kNear.name});
    pair->far.add("there", {.kind = far.name});
    there = pair->remote("there");
  }
  void TearDown() override {
    there = {};
    pair.reset();
  }
  Result<Transfer> submit(std::span<const Block> blocks, const TransferOptions& options = {}) {
    return op() == Op::write ? pair->peer.write(here.region, there, blocks, options)
                             : pair->peer.read(here.region, there, blocks, options);
  }
  /// Moves the blocks by that path and verifies every byte of both sides.
  void move(std::span<const Block> blocks, const char* path) {
    expect_moved(pair->far, "there", here, op(), blocks, seeds += 2,
                 [&] { return submit(blocks, {.require = path}); });
  }
  Explanation explain(std::uint64_t blocks, std::uint64_t bytes) {
    return take(pair->peer.explain(op(), here.region, there, blocks, bytes));
  }

  Held here;  // outlives the Engine
  std::unique_ptr<Pair> pair;
  RemoteRegion there;
  std::uint64_t seeds = 700;
};

TEST_P(EngineSlot, MovesWhatIsSmall) {
  std::vector<Block> many;
  for (std::uint64_t i = 0; i < 64; ++i) many.push_back({i * 1200 + 3, i * 1199 + 1, 131 + i * 13});
  for (unsigned round = 0; round < 3; ++round) {  // the waiter copies from the second one on
    for (const Block& one : {Block{5, 3, 1}, Block{7, 9, 4097}, Block{1, 0, kMost}})
      move(std::span(&one, 1), "kernel+copy_engine");
    move(many, "kernel+sm_kernel");
  }
}

TEST_P(EngineSlot, LeavesToThePeerWhatIsLarge) {
  EXPECT_EQ(explain(1, kMost).executor, "here");
  EXPECT_EQ(explain(1, kMost + 1).executor, "peer");
  EXPECT_EQ(explain(64, kMost).executor, "here");
  EXPECT_EQ(explain(65, 65).executor, "peer");
  const Explanation small = explain(1, 8);
  EXPECT_EQ(small.path, "kernel+copy_engine");
  EXPECT_GT(small.expected_gbps, 0);
  EXPECT_NE(small.reason, "");
  const Block large{0, 0, kMost + 1};
  move(std::span(&large, 1), "!kernel");
}

TEST_P(EngineSlot, WaitsForNoPeer) {
  here.fill(1);
  pair->far.fill("there", 2);
  const Block block{11, 13, 4096};
  ASSERT_EQ(finished(submit(std::span(&block, 1))).to_string(), "ok");
  here.fill(3);
  pair->far.fill("there", 4);
  pair->far.process().signal(SIGSTOP);
  EXPECT_EQ(finished(submit(std::span(&block, 1))).to_string(), "ok");
  pair->far.process().signal(SIGCONT);
  if (op() == Op::write)
    EXPECT_EQ(pair->far.difference("there", 4, {{13, 3, 11, 4096}}), "");
  else
    EXPECT_EQ(here.difference(3, {{11, 4, 13, 4096}}), "");
}

TEST_P(EngineSlot, TakesMoreAtOnceThanThereAreSlots) {
  constexpr std::uint64_t kParts = 256, kPart = kMiB / kParts;
  expect_moved(pair->far, "there", here, op(), {{Block{0, 0, kMiB}}}, 900, [&] {
    std::vector<Transfer> transfers;
    for (std::uint64_t i = 0; i + 1 < kParts; ++i) {
      const Block part{i * kPart, i * kPart, kPart};
      transfers.push_back(take(submit(std::span(&part, 1))));
    }
    for (const Transfer& each : transfers) EXPECT_EQ(each.wait(10s).to_string(), "ok");
    const Block last{kMiB - kPart, kMiB - kPart, kPart};
    return submit(std::span(&last, 1));
  });
}

TEST_P(EngineSlot, EndsWhatIsCanceled) {
  for (unsigned i = 0; i < 50; ++i) {
    const Block block{i, 0, kMost};
    const Transfer moved = take(submit(std::span(&block, 1)));
    (void)moved.cancel();
    const Status end = moved.wait(10s);
    EXPECT_TRUE(end.ok() || end.code() == Code::canceled) << end.to_string();
  }
  const Block block{3, 5, 777};
  move(std::span(&block, 1), "");
}

TEST_P(EngineSlot, EndsAllWhenThePeerIsKilled) {
  std::vector<Transfer> transfers;
  for (std::uint64_t i = 0; i < 40; ++i) {
    const Block part{i * 4096, i * 4096, 4096};
    auto moved = submit(std::span(&part, 1));
    if (i == 20) pair->far.process().kill();
    if (moved.ok())
      transfers.push_back(*std::move(moved));
    else
      EXPECT_EQ(moved.status().code(), Code::disconnected);
  }
  for (const Transfer& each : transfers) {
    const Status end = each.wait(10s);
    EXPECT_TRUE(end.ok() || end.code() == Code::disconnected) << end.to_string();
  }
  const Block block{0, 0, 8};
  EXPECT_FALSE(finished(submit(std::span(&block, 1))).ok());
}

INSTANTIATE_TEST_SUITE_P(Every, EngineSlot,
                         ::testing::Combine(::testing::Values(Op::write, Op::read),
                                            ::testing::Values(kKinds[2], kKinds[3])),
                         [](const auto& param) {
                           const char* const op =
                               std::get<0>(param.param) == Op::write ? "writes_to_" : "reads_from_";
                           return op + std::string(std::get<1>(param.param).name);
                         });

}  // namespace engine_slot_test
}  // namespace linkspan::test
