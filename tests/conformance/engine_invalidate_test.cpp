// Tests memory that its allocator is about to unmap while peers have it mapped.
#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/fake_cuda/controls.hpp"
#include "tests/support/held_stream.hpp"

namespace linkspan::test {
namespace engine_invalidate_test {

constexpr std::uint64_t kMiB = 1u << 20, kBytes = 5 * kMiB;

class EngineInvalidate : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status status = need_gpus(2); !status.ok()) GTEST_SKIP() << status.to_string();
  }
};

/// An allocator that gives pages away and keeps the address.
TEST_F(EngineInvalidate, InvalidatedItIsMappedAnewUnderItsAddress) {
  Held target;
  Pair pair;
  must(pair.engine.listen());
  target = Held::make(pair.engine, {.kind = "chunks", .bytes = kBytes});
  must(pair.engine.publish("first", target.region));
  pair.far.add("source", {.kind = "device0", .bytes = kBytes});
  pair.far.fill("source", 2);
  pair.far.connect(pair.engine.address());
  pair.far.start("source", "first", 2);
  EXPECT_EQ(pair.far.ends(), (std::vector<std::string>{"ok", "ok"}));
  // The peer holds its RemoteRegion, and always will.
  ASSERT_EQ(pair.engine.deregister(target.region, 20ms).code(), Code::busy);
  ASSERT_EQ(pair.engine.invalidate(target.region, 10s).to_string(), "ok");
  const auto early = pair.far.explain("source", "again", kBytes);  // before it is there
  EXPECT_NE(early.status().what().find("not_found"), std::string::npos) << early.status().what();

  for (const std::size_t i : {0u, 1u, 2u}) target.buffer->row().remap(i);
  void* const data = target.region.data();
  target.region = take(pair.engine.register_memory(data, kBytes));
  must(pair.engine.publish("again", target.region));
  target.fill(3);
  pair.far.fill("source", 4);
  pair.far.start("source", "again", 2);
  EXPECT_EQ(pair.far.ends(), (std::vector<std::string>{"ok", "ok"}));
  EXPECT_EQ(target.difference(3, {{0, 4, 0, kBytes}}), "");
}

/// A peer's batch in flight ends before the peer unmaps, and each of many batches is answered.
TEST_F(EngineInvalidate, BesideTransfersOfThePeerItIsBoundedAndTrue) {
  Held target;
  Pair pair;
  must(pair.engine.listen());
  target = Held::make(pair.engine, {.kind = "chunks", .bytes = kBytes});
  must(pair.engine.publish("target", target.region));
  pair.far.add("source", {.kind = "device0", .bytes = kBytes});
  pair.far.fill("source", 2);
  pair.far.connect(pair.engine.address());
  pair.far.start("source", "target", 50);
  ASSERT_EQ(pair.engine.invalidate(target.region, 10s).to_string(), "ok");
  target.fill(3);  // no peer writes it from now on
  for (const std::string& end : pair.far.ends()) EXPECT_TRUE(end == "ok" || end == "unreachable");
  EXPECT_EQ(target.difference(3), "");
}

/// One launch copies all pairs; a peer takes the region of one back before the launch has begun.
TEST_F(EngineInvalidate, ABatchOfSeveralRegionsEndsBeforeAnyIsUnmapped) {
  constexpr std::uint64_t kPage = 4096;
  const std::vector<std::string> names = {"first", "second", "third"};
  std::vector<Held> here(names.size());
  Pair pair;
  std::vector<Region> local;
  std::vector<RemoteRegion> remote;
  for (std::size_t i = 0; i < names.size(); ++i) {
    here[i] = Held::make(pair.engine, {.kind = "device0", .bytes = kBytes});
    here[i].fill(10 + i);
    local.push_back(here[i].region);
    pair.far.add(names[i], {.kind = "chunks", .bytes = kBytes});
    pair.far.fill(names[i], 20 + i);
    remote.push_back(pair.remote(names[i]));
  }
  const std::uint32_t ours[] = {3, 0}, theirs[] = {700, 5};
  // An unmapping waits for transfers that follow a user's stream, so the GPU is held if it can be.
  const FakeCuda fake = FakeCuda::find();
  std::optional<FakeCudaHold> gpu;
  HeldStream stream;
  TransferOptions options{.deadline = 20s};
  if (fake) {
    gpu.emplace(fake, 0);
  } else {
    stream.hold();
    options.after = stream.order();
  }
  const Transfer held =
      take(pair.peer.write(local, remote, Pages{kPage, 0, 0, ours, theirs}, options));
  for (const std::string& name : names)
    EXPECT_EQ(pair.far.invalidate(name, 100ms).code(), Code::busy) << name;
  EXPECT_FALSE(pair.peer.write(local, remote, Pages{kPage, 0, 0, ours, theirs}).ok());
  fake ? gpu->release() : stream.go_on();
  ASSERT_EQ(held.wait(10s).to_string(), "ok");
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(pair.far.invalidate(names[i], 10s).to_string(), "ok");
    EXPECT_EQ(pair.far.difference(
                  names[i], 20 + i,
                  {{700 * kPage, 10 + i, 3 * kPage, kPage}, {5 * kPage, 10 + i, 0, kPage}}),
              "")
        << names[i];
  }
}

TEST_F(EngineInvalidate, InvalidateCancelsWhatIsInFlightHere) {
  Held here;
  Pair pair;
  here = Held::make(pair.engine, {.kind = "device0"});
  pair.far.add("there", {.kind = "device1"});
  const RemoteRegion there = pair.remote("there");
  HeldStream stream;
  stream.hold();
  std::vector<Block> blocks;  // more than a copier takes at once
  for (std::uint64_t i = 0; i < 300; ++i) blocks.push_back({i * 3400, i * 3400, 3001});
  const Transfer held =
      take(pair.peer.write(here.region, there, blocks, {.deadline = 20s, .after = stream.order()}));
  const Status busy = pair.engine.invalidate(here.region, 50ms);
  EXPECT_EQ(busy.code(), Code::busy) << busy.to_string();
  EXPECT_FALSE(pair.peer.write(here.region, there, blocks).ok());
  stream.go_on();
  EXPECT_EQ(held.wait(10s).code(), Code::canceled);
  EXPECT_EQ(pair.engine.invalidate(here.region, 10s).to_string(), "ok");
}

}  // namespace engine_invalidate_test
}  // namespace linkspan::test
