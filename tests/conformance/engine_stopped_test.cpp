// Tests a peer that was asked to copy and is stopped (SIGSTOP) meanwhile: the memory stays in use
// until it continues, whatever the deadline says, and nothing else waits for it.
#include <signal.h>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace engine_stopped_test {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr Block kAll{0, 0, kMiB};

/// The peer executes: only it can map both memories.
struct AskedRoute {
  const char* name;
  Kind near, far;
  Op op;
  bool exclusive = false;
};
void PrintTo(const AskedRoute& c, std::ostream* out) { *out << c.name; }

constexpr AskedRoute kAsked[] = {
    {"writes_shared_to_exclusive_host", kKinds[4], kKinds[3], Op::write, true},
    {"reads_exclusive_host_to_shared", kKinds[4], kKinds[3], Op::read, true},
    {"writes_device_to_host", kKinds[0], kKinds[3], Op::write},
    {"reads_host_to_device", kKinds[1], kKinds[3], Op::read},
    {"writes_device_to_pinned", kKinds[0], kKinds[2], Op::write},
    {"reads_pinned_to_device", kKinds[1], kKinds[2], Op::read},
};

class EngineAsked : public ::testing::TestWithParam<AskedRoute> {
 protected:
  void SetUp() override {
    const Status status = kinds_here({GetParam().near, GetParam().far});
    if (!status.ok()) GTEST_SKIP() << status.to_string();
  }
  static Result<Transfer> move(const Peer& peer, const Region& here, const RemoteRegion& there,
                               const TransferOptions& options = {}) {
    const auto block = std::span(&kAll, 1);
    return GetParam().op == Op::write ? peer.write(here, there, block, options)
                                      : peer.read(here, there, block, options);
  }
};

TEST_P(EngineAsked, KeepsTheMemoryLentWhileThePeerIsStopped) {
  const AskedRoute& route = GetParam();
  Held here, beside;  // outlive the Engine
  Pair pair;
  FarEngine third;
  here = Held::make(pair.engine, {.kind = route.near.name});
  beside = Held::make(pair.engine, {.kind = route.near.name});
  const MemoryOptions far{.kind = route.far.name, .peers = {true, true, route.exclusive}};
  pair.far.add("there", far);
  third.add("there", far);
  const Peer other = take(pair.engine.connect(third.address()));
  RemoteRegion there = pair.remote("there"), elsewhere = take(other.lookup("there"));
  ASSERT_EQ(take(pair.peer.explain(route.op, here.region, there, 1, kMiB)).executor, "peer");
  here.fill(1);
  pair.far.fill("there", 2);
  beside.fill(3);
  third.fill("there", 4);

  pair.far.process().signal(SIGSTOP);
  const Transfer moved = take(move(pair.peer, here.region, there, {.deadline = 50ms}));
  EXPECT_EQ(moved.wait(200ms).code(), Code::pending);
  EXPECT_FALSE(moved.done()) << "a stopped peer can still touch the memory";
  EXPECT_EQ(moved.status().code(), Code::pending);
  EXPECT_EQ(moved.cancel().code(), Code::pending);
  EXPECT_EQ(pair.engine.deregister(here.region, 20ms).code(), Code::busy);
  // The same kinds, to a peer that is not stopped.
  EXPECT_EQ(finished(move(other, beside.region, elsewhere)).to_string(), "ok");
  if (route.op == Op::write)
    EXPECT_EQ(third.difference("there", 4, {{0, 3, 0, kMiB}}), "");
  else
    EXPECT_EQ(beside.difference(3, {{0, 4, 0, kMiB}}), "");
  EXPECT_EQ(moved.status().code(), Code::pending);

  pair.far.process().signal(SIGCONT);
  const Status end = moved.wait(10s);
  ASSERT_TRUE(moved.done()) << pair.engine.dump();
  EXPECT_TRUE(end.ok() || end.code() == Code::timed_out) << end.to_string();
  here.fill(5);
  pair.far.fill("there", 6);
  EXPECT_EQ(pair.engine.deregister(here.region).to_string(), "ok");
  EXPECT_EQ(here.difference(5), "");
  EXPECT_EQ(pair.far.difference("there", 6), "");
}

TEST(StoppedPeer, GivesBackAnExclusiveRegion_ThatItHasLookedUp) {
  Held here;  // outlives the Engine
  Pair pair;
  here = Held::make(pair.engine, {.kind = "host", .peers = {true, true, true}});
  must(pair.engine.publish("here", here.region));
  pair.far.accept();
  pair.far.add("theirs", {.kind = "shared"});
  pair.far.start("theirs", "here", 1);
  EXPECT_EQ(pair.far.ends(), std::vector<std::string>{"ok"});
  pair.far.process().signal(SIGSTOP);
  EXPECT_EQ(pair.engine.deregister(here.region, 2s).to_string(), "ok") << pair.engine.dump();
  pair.far.process().signal(SIGCONT);
  EXPECT_ANY_THROW(pair.far.start("theirs", "here", 1)) << "it is gone";
}

INSTANTIATE_TEST_SUITE_P(Every, EngineAsked, ::testing::ValuesIn(kAsked),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace engine_stopped_test
}  // namespace linkspan::test
