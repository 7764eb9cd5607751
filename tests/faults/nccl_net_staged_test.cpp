// Tests GPU memory over a network plugin that takes host memory only, while the GPU is blocked. The
// pinned buffer and the memory that the GPU uses are not reused until it is done, whatever a user,
// the peer or the Engine does meanwhile.
#include <thread>
#include <tuple>

#include "tests/conformance/wire_pair.hpp"
#include "tests/support/fake_cuda/controls.hpp"

namespace linkspan::test {
namespace nccl_net_staged_test {

constexpr std::uint64_t kBytes = 9u << 20;  // more than one slot, less than there are
constexpr Block kAll{0, 0, kBytes};

enum class Event : std::uint8_t { cancel, kill, close };
constexpr const char* kEvents[] = {"canceled", "killed", "closed"};

class NcclNetStaged : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fake_) GTEST_SKIP() << "needs the simulated driver";
    before_ = fake_.call_count("cuMemcpyAsync");
  }
  /// Prevents the end of all copies of this process's GPU from now on.
  void hold() {
    held_.emplace(fake_, 0);
    before_ = fake_.call_count("cuMemcpyAsync");
  }
  void release() { held_.reset(); }
  /// Returns true if the GPU uses a staging buffer.
  bool has_slots(Engine& engine) const {
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    while (fake_.call_count("cuMemcpyAsync") == before_ && !limit.passed()) engine.progress();
    return fake_.call_count("cuMemcpyAsync") != before_;
  }
  static void linger(Engine& engine) {
    const auto limit = base::Deadline::after(base::Clock::steady(), 50ms);
    while (!limit.passed()) engine.progress();
  }
  static MemoryOptions memory() { return {.kind = "device0", .bytes = kBytes}; }

 private:
  const FakeCuda fake_ = FakeCuda::find();
  std::optional<FakeCudaHold> held_;
  unsigned long long before_ = 0;
};

class NcclNetStagedHeld : public NcclNetStaged,
                          public ::testing::WithParamInterface<std::tuple<Op, Event>> {};

TEST_P(NcclNetStagedHeld, IsNotOverBeforeItsGpuIsDone) {
  const auto [op, event] = GetParam();
  Held here;  // outlives the Engine
  WirePair pair(kStaged);
  here = Held::make(pair.engine, memory());
  pair.far.add("there", memory());
  const RemoteRegion there = pair.remote("there");
  here.fill(1);
  EXPECT_EQ(
      finished(move(pair.peer, op, here.region, there, {0, 0, 1}, by_wire(kStaged))).to_string(),
      "ok");  // the flow and a slot are there
  hold();
  const Transfer moved = take(move(pair.peer, op, here.region, there, kAll, by_wire(kStaged)));
  ASSERT_TRUE(has_slots(pair.engine)) << pair.engine.dump();
  if (event == Event::cancel) {
    EXPECT_EQ(moved.cancel().code(), Code::pending);
  }
  if (event == Event::kill) pair.far.process().kill();
  if (event == Event::close) {
    EXPECT_EQ(pair.engine.close(20ms).code(), Code::pending);
  }
  linger(pair.engine);
  EXPECT_FALSE(moved.done()) << moved.status().to_string();
  if (event != Event::close) {
    EXPECT_EQ(pair.engine.deregister(here.region, 20ms).code(), Code::busy);
  }
  release();
  const Status end = moved.wait(10s);
  ASSERT_TRUE(moved.done()) << pair.engine.dump();
  const Code due = event == Event::kill ? Code::disconnected : Code::canceled;
  EXPECT_TRUE(end.ok() || end.code() == due) << end.to_string();
  if (event == Event::close) {
    EXPECT_EQ(pair.engine.close(10s).to_string(), "ok");
  }
  here.fill(8);  // the user's again
  linger(pair.engine);
  EXPECT_EQ(here.difference(8), "") << "a late byte";
  if (event == Event::close) return;
  EXPECT_EQ(pair.engine.deregister(here.region, 5s).to_string(), "ok");
}

INSTANTIATE_TEST_SUITE_P(Every, NcclNetStagedHeld,
                         ::testing::Combine(::testing::Values(Op::write, Op::read),
                                            ::testing::Values(Event::cancel, Event::kill,
                                                              Event::close)),
                         [](const auto& param) {
                           const std::string op =
                               std::get<0>(param.param) == Op::write ? "write_" : "read_";
                           return op + kEvents[static_cast<int>(std::get<1>(param.param))];
                         });

/// Memory of this process, for which this side has no transfer.
TEST_F(NcclNetStaged, WhatADeadPeerHasWrittenIsNotOverEither) {
  Held target;
  FarEngine far(with_wire(kStaged));
  Engine engine = take(Engine::open(wire_options(kStaged)));
  must(engine.listen(listen_at(kStaged)));
  target = Held::make(engine, memory());
  target.fill(1);
  must(engine.publish("target", target.region));
  far.add("source", memory());
  far.connect(engine.address());
  const Peer peer = take(engine.accept(10s));
  hold();
  far.churn(Op::write, "source", "target", kAll, by_wire(kStaged).require);
  ASSERT_TRUE(has_slots(engine)) << engine.dump();
  far.process().kill();
  linger(engine);
  EXPECT_EQ(engine.deregister(target.region, 20ms).code(), Code::busy);
  release();
  EXPECT_EQ(engine.deregister(target.region, 10s).to_string(), "ok") << engine.dump();
  target.fill(8);
  linger(engine);
  EXPECT_EQ(target.difference(8), "") << "a late byte";
}

/// A buffer's old contents must not be sent. Both memories have the same bytes, so a changed byte
/// comes from elsewhere.
TEST_F(NcclNetStaged, ACanceledOneBringsNothingOfOthers) {
  constexpr std::uint64_t kMax = 300;
  Held here;
  WirePair pair(kStaged, {"DELAY_US=500"});
  here = Held::make(pair.engine, memory());
  pair.far.add("there", memory());
  const RemoteRegion there = pair.remote("there");
  std::vector<Block> blocks;
  for (std::uint64_t i = 0; i < kMax; ++i) blocks.push_back(part_of(kBytes, i, kMax));
  std::size_t canceled = 0;
  for (std::uint64_t round = 0; round < 16; ++round) {
    const Op op = round % 2 == 0 ? Op::write : Op::read;
    const auto start = [&] {
      return take(op == Op::write ? pair.peer.write(here.region, there, blocks, by_wire(kStaged))
                                  : pair.peer.read(here.region, there, blocks, by_wire(kStaged)));
    };
    here.fill(2 + round);
    pair.far.fill("there", 102 + round);
    EXPECT_EQ(start().wait(10s).to_string(), "ok");
    here.fill(1);
    pair.far.fill("there", 1);
    const Transfer moved = start();
    const auto moment =
        base::Deadline::after(base::Clock::steady(), round * std::chrono::microseconds(300));
    while (!moment.passed()) pair.engine.progress();
    (void)moved.cancel();
    const Status end = moved.wait(10s);
    ASSERT_TRUE(end.ok() || end.code() == Code::canceled) << end.to_string();
    canceled += end.ok() ? 0 : 1;
    EXPECT_EQ(here.difference(1), "");
    EXPECT_EQ(pair.far.difference("there", 1), "");
  }
  EXPECT_GT(canceled, 0u) << "each was faster than its cancel";
}

}  // namespace nccl_net_staged_test
}  // namespace linkspan::test
