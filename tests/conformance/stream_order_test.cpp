// Tests transfers in the order of a user's stream: after it, before it, and while it is blocked.
//
// A stream is held by a wait for a word of the test. The routes differ in what copies: a GPU of
// this process, its CPU, the peer, or a wire.
#include <optional>
#include <thread>

#include "tests/conformance/wire_pair.hpp"
#include "tests/support/held_stream.hpp"

namespace linkspan::test {
namespace stream_order_test {

constexpr std::uint64_t kBytes = (1u << 20) + 77;
constexpr Duration kAWhile = 30ms;

bool stays_undone(const Transfer& transfer, Duration time = kAWhile) {
  return transfer.wait(time).code() == Code::pending;
}

/// Kinds here and there, how many blocks, and by which wire, if by any.
struct Way {
  const char* name;
  const char *near, *far;
  std::uint64_t blocks = 1;
  std::optional<int> wire{};
};
constexpr Way kWays[] = {{"copy_engine", "device0", "device1"},
                         {"sm_kernel", "device0", "device1", 300},
                         {"peer_executes", "device0", "pinned"},
                         {"pageable", "host", "device0"},
                         {"cpu", "host", "shared"},
                         {"bounce", "unshared0", "unshared1"},
                         {"tcp", "device0", "device1", 300, kTcp},
                         {"tcp_from_host", "host", "device0", 1, kTcp},
                         {"nccl_net", "device0", "device1", 300, kStaged}};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class StreamOrders : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    const Way& way = GetParam();
    const Status status = kinds_here({kind_of("device0"), kind_of(way.near), kind_of(way.far)});
    if (!status.ok()) GTEST_SKIP() << status.to_string();
    stream = std::make_unique<HeldStream>();
    pair = way.wire ? std::make_unique<Pair>(with_wire(*way.wire), kEngineHelper,
                                             wire_options(*way.wire))
                    : std::make_unique<Pair>();
    here = Held::make(pair->engine, {.kind = way.near, .bytes = kBytes});
    pair->far.add("there", {.kind = way.far, .bytes = kBytes});
    there = pair->remote("there");
    for (std::uint64_t i = 0; i < way.blocks; ++i) parts.push_back(part_of(kBytes, i, way.blocks));
    EXPECT_EQ(write({}, stream->order()).wait(10s).to_string(), "ok");
    stream->synchronize();
    here.fill(1);
    pair->far.fill("there", 2);
  }
  void TearDown() override {
    if (stream != nullptr) stream->go_on();
    there = {};
    if (pair != nullptr) pair.reset();
  }
  Transfer write(StreamOrder after, StreamOrder release = {}) {
    TransferOptions options;
    if (const auto wire = GetParam().wire) options = by_wire(*wire);
    options.deadline = 20s;
    options.after = after;
    options.release = release;
    return take(pair->peer.write(here.region, there, parts, options));
  }
  std::string far_holds(std::uint64_t seed) {
    return pair->far.difference("there", 2, {{0, seed, 0, kBytes}});
  }

  std::unique_ptr<HeldStream> stream;
  Held here;  // outlives the Engine
  std::unique_ptr<Pair> pair;
  RemoteRegion there;
  std::vector<Block> parts;
};

TEST_P(StreamOrders, RunsBehindAHeldStream) {
  stream->hold();
  const Transfer moved = write(stream->order());
  EXPECT_TRUE(stays_undone(moved));
  EXPECT_EQ(pair->far.difference("there", 2), "");
  here.fill(3);  // what the stream would do meanwhile
  stream->go_on();
  EXPECT_EQ(moved.wait(10s).to_string(), "ok");
  EXPECT_EQ(far_holds(3), "");
}

TEST_P(StreamOrders, HoldsTheStreamUntilItHasEnded) {
  auto later = take(Buffer::create(MemoryKind::pinned, kBytes));
  later->fill(4);
  stream->hold();
  const Transfer moved = write(stream->order(), stream->order());
  // The next work in the stream overwrites the source.
  if (here.region.kind() == MemoryKind::device)
    stream->copy(here.region.data(), later->data(), kBytes);
  EXPECT_TRUE(stays_undone(moved));
  stream->go_on();
  EXPECT_EQ(moved.wait(10s).to_string(), "ok");
  stream->synchronize();
  EXPECT_EQ(far_holds(1), "");
}

TEST_P(StreamOrders, TheStreamGoesOnAfterAnError) {
  const Transfer moved = write({}, stream->order());
  (void)moved.cancel();
  const Code end = moved.wait(10s).code();
  EXPECT_TRUE(end == Code::ok || end == Code::canceled) << name_of(end);
  stream->synchronize();
}

TEST_P(StreamOrders, ACancelBehindAHeldStreamWaitsForIt) {
  stream->hold();
  const Transfer moved = write(stream->order());
  const Code answer = moved.cancel().code();
  if (answer == Code::pending) {  // it lies in our stream
    EXPECT_TRUE(stays_undone(moved));
  }
  stream->go_on();
  const Code end = moved.wait(10s).code();
  EXPECT_TRUE(end == Code::canceled || end == Code::ok) << name_of(end);
  if (answer == Code::ok) {
    EXPECT_EQ(end, Code::canceled);
    EXPECT_EQ(pair->far.difference("there", 2), "");
  }
}

TEST_P(StreamOrders, EndsWithThePeerWhenTheStreamMoves) {
  stream->hold();
  const Transfer moved = write(stream->order(), stream->order());
  pair->far.process().kill();
  EXPECT_TRUE(is_down(pair->peer, base::Deadline::after(base::Clock::steady(), 10s)));
  stream->go_on();
  const Code end = moved.wait(1s).code();
  EXPECT_TRUE(end == Code::disconnected || end == Code::ok) << name_of(end);
  EXPECT_TRUE(moved.done());
  stream->synchronize();
}

INSTANTIATE_TEST_SUITE_P(Every, StreamOrders, ::testing::ValuesIn(kWays),
                         [](const auto& param) { return std::string(param.param.name); });

class StreamOrderGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status status = need_gpus(1); !status.ok()) GTEST_SKIP() << status.to_string();
  }
};

TEST_F(StreamOrderGpu, ThousandsBehindAHeldStreamLeaveOtherPeersAlone) {
  constexpr std::uint64_t kTransfers = 2000, kEach = 512;
  Held here;
  Held other;
  HeldStream stream;
  Pair pair;
  FarEngine second;
  here = Held::make(pair.engine, {.kind = "device0", .bytes = kTransfers * kEach});
  other = Held::make(pair.engine, {.kind = "device0", .bytes = kBytes});
  pair.far.add("there", {.kind = "device0", .bytes = kTransfers * kEach});
  second.add("elsewhere", {.kind = "device0", .bytes = kBytes});
  const Peer beside = take(pair.engine.connect(second.address()));
  const RemoteRegion there = pair.remote("there");
  const RemoteRegion elsewhere = take(beside.lookup("elsewhere"));
  here.fill(1);
  other.fill(2);
  pair.far.fill("there", 3);

  stream.hold();
  std::vector<Transfer> held;
  for (std::uint64_t i = 0; i < kTransfers; ++i) {
    const Block part{i * kEach, i * kEach, kEach};
    held.push_back(take(pair.peer.write(here.region, there, std::span(&part, 1),
                                        {.deadline = 60s, .after = stream.order()})));
  }
  const auto two_seconds = base::Deadline::after(base::Clock::steady(), 2s);
  std::uint64_t beside_it = 0;
  Duration longest{0};
  while (!two_seconds.passed() || beside_it <= 3) {
    const auto begin = base::Clock::steady().now();
    second.fill("elsewhere", 100 + beside_it);
    const Block whole{0, 0, kBytes};
    ASSERT_EQ(finished(beside.write(other.region, elsewhere, std::span(&whole, 1))).to_string(),
              "ok");
    ASSERT_EQ(second.difference("elsewhere", 100 + beside_it, {{0, 2, 0, kBytes}}), "");
    longest = std::max(longest, base::Clock::steady().now() - begin);
    ++beside_it;
  }
  EXPECT_LT(longest, 20s);
  EXPECT_FALSE(held.front().done());
  stream.go_on();
  for (const Transfer& each : held) ASSERT_EQ(each.wait(20s).to_string(), "ok");
  EXPECT_EQ(pair.far.difference("there", 3, {{0, 1, 0, kTransfers * kEach}}), "");
}

TEST_F(StreamOrderGpu, WhatFollowsNoStreamPassesWhatIsHeld) {
  HeldStream stream, second;
  Held here;  // outlives the Engine
  Pair pair;
  here = Held::make(pair.engine, {.kind = "device0", .bytes = kBytes});
  pair.far.add("there", {.kind = "device0", .bytes = kBytes});
  const RemoteRegion there = pair.remote("there");
  here.fill(1);
  pair.far.fill("there", 2);
  const Block first = part_of(kBytes, 0, 3), other = part_of(kBytes, 1, 3),
              last = part_of(kBytes, 2, 3);
  stream.hold();
  const Transfer held =
      take(pair.peer.write(here.region, there, std::span(&first, 1), {.after = stream.order()}));
  EXPECT_EQ(finished(pair.peer.write(here.region, there, std::span(&other, 1))).to_string(), "ok");
  EXPECT_EQ(
      finished(pair.peer.write(here.region, there, std::span(&last, 1), {.after = second.order()}))
          .to_string(),
      "ok");
  EXPECT_FALSE(held.done());
  stream.go_on();
  EXPECT_EQ(held.wait(10s).to_string(), "ok");
  EXPECT_EQ(pair.far.difference("there", 2, {{0, 1, 0, kBytes}}), "");
}

TEST_F(StreamOrderGpu, WhatIsClosedBehindAHeldStreamHoldsUpNobody) {
  HeldStream stream;
  Held here;  // outlives the Engine
  std::vector<std::byte> plain(kBytes);
  Pair pair;
  FarEngine leaving;
  here = Held::make(pair.engine, {.kind = "device0", .bytes = kBytes});
  const Region pinned =
      take(pair.engine.register_memory(plain.data(), plain.size(), {.pin = true}));
  pair.far.add("there", {.kind = "device0", .bytes = kBytes});
  leaving.add("dropped", {.kind = "device0", .bytes = kBytes});
  leaving.add("lost", {.kind = "shared", .bytes = kBytes});
  const Peer left = take(pair.engine.connect(leaving.address()));
  const RemoteRegion there = pair.remote("there");
  RemoteRegion dropped = take(left.lookup("dropped")), lost = take(left.lookup("lost"));
  here.fill(1);
  pair.far.fill("there", 2);
  const Block first = part_of(kBytes, 0, 2), second = part_of(kBytes, 1, 2);
  stream.hold();
  const Transfer held =
      take(pair.peer.write(here.region, there, std::span(&first, 1), {.after = stream.order()}));
  const base::Time begin = base::Clock::steady().now();
  dropped = {};
  leaving.process().kill();
  lost = {};
  EXPECT_EQ(pair.engine.deregister(pinned, 50ms).code(), Code::busy);
  EXPECT_EQ(finished(pair.peer.write(here.region, there, std::span(&second, 1))).to_string(), "ok");
  EXPECT_LT(base::Clock::steady().now() - begin, 15s);
  EXPECT_FALSE(held.done());
  stream.go_on();
  EXPECT_EQ(held.wait(10s).to_string(), "ok");
  EXPECT_EQ(pair.engine.deregister(pinned).to_string(), "ok");
  EXPECT_EQ(pair.far.difference("there", 2, {{0, 1, 0, kBytes}}), "");
}

class StreamOrderWires : public StreamOrderGpu, public ::testing::WithParamInterface<int> {};

/// A wire frees the memory that it pinned for a transfer when the transfer ends.
TEST_P(StreamOrderWires, APeerThatEndsBehindAHeldStreamHoldsUpNoOther) {
  const int wire = GetParam();
  HeldStream stream;
  Held here;  // outlives the Engine
  WirePair pair(wire);
  FarEngine leaving(with_wire(wire));
  here = Held::make(pair.engine, {.kind = "device0", .bytes = kBytes});
  here.fill(1);
  pair.far.add("there", {.kind = "device0", .bytes = kBytes});
  pair.far.fill("there", 2);
  leaving.add("left", {.kind = "device0", .bytes = kBytes});
  const Peer left = take(pair.engine.connect(leaving.address()));
  // Both stay imported, because a closing just before the stream is held may wait for it.
  const RemoteRegion there = pair.remote("there"), elsewhere = take(left.lookup("left"));
  const Block first = part_of(kBytes, 0, 2), second = part_of(kBytes, 1, 2);
  TransferOptions options = by_wire(wire, 20s);
  for (const Op op : {Op::write, Op::read}) {
    ASSERT_EQ(finished(move(pair.peer, op, here.region, there, first, options)).to_string(), "ok");
    ASSERT_EQ(finished(move(left, op, here.region, elsewhere, first, options)).to_string(), "ok");
  }
  stream.hold();
  options.after = stream.order();
  const Transfer held = take(move(pair.peer, Op::write, here.region, there, first, options));
  options.after = {};
  leaving.process().kill();
  EXPECT_TRUE(is_down(left, base::Deadline::after(base::Clock::steady(), 10s)));
  const base::Time begin = base::Clock::steady().now();
  while (base::Clock::steady().now() - begin < 200ms)
    ASSERT_EQ(finished(move(pair.peer, Op::write, here.region, there, second, options)).to_string(),
              "ok");
  EXPECT_LT(base::Clock::steady().now() - begin, 15s);
  EXPECT_FALSE(held.done());
  stream.go_on();
  EXPECT_EQ(held.wait(10s).to_string(), "ok");
  EXPECT_EQ(pair.far.difference("there", 2, {{0, 1, 0, kBytes}}), "");
}

// A plugin that takes memory of GPUs frees some of its own, which waits in the driver.
INSTANTIATE_TEST_SUITE_P(Every, StreamOrderWires, ::testing::Values(kTcp, kStaged),
                         [](const auto& param) { return name_of_wire(param.param); });

/// The copy engine gets the first batch piece by piece, and the last at once.
TEST_F(StreamOrderGpu, HoldsTheStreamUntilAllOfSeveralBatchesHaveEnded) {
  constexpr std::uint64_t kBlocks = 8193, kEach = 128, kAll = kBlocks * 2 * kEach;
  Held here;  // outlives the Engine
  HeldStream stream;
  auto later = take(Buffer::create(MemoryKind::pinned, kAll));
  Pair pair;
  here = Held::make(pair.engine, {.kind = "device0", .bytes = kAll});
  pair.far.add("there", {.kind = "device0", .bytes = kAll});
  const RemoteRegion there = pair.remote("there");
  std::vector<Block> blocks;
  std::vector<Expected> due;
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    blocks.push_back({i * 2 * kEach, i * 2 * kEach, kEach});
    due.push_back({i * 2 * kEach, 1, i * 2 * kEach, kEach});
  }
  here.fill(1);
  pair.far.fill("there", 2);
  later->fill(4);
  const Transfer moved = take(pair.peer.write(
      here.region, there, blocks, {.deadline = 20s, .release = stream.order(), .copy_ctas = 0}));
  stream.copy(here.region.data(), later->data(), kAll);
  EXPECT_EQ(moved.wait(10s).to_string(), "ok");
  stream.synchronize();
  EXPECT_EQ(pair.far.difference("there", 2, due), "");
}

void messages_wait(const std::vector<std::string>& far_environment = {}) {
  HeldStream stream;
  Held here;  // outlives the Engine
  Pair pair(far_environment);
  pair.far.accept();
  here = Held::loose(pair.engine, {.kind = "device0", .bytes = kBytes});
  const TransferOptions options{
      .deadline = 20s, .after = stream.order(), .release = stream.order()};
  for (const std::string far : {"device0", "host"}) {
    SCOPED_TRACE(far);
    pair.far.add_loose(far, {.kind = far, .bytes = kBytes});
    // The first use of a GPU waits for what is in flight there.
    const std::size_t first = take(pair.far.post({.sends = false, .name = far, .bytes = 8}));
    EXPECT_EQ(finished(pair.peer.send(1, here.at(0), 8)).to_string(), "ok");
    EXPECT_EQ(pair.far.end(first).code, "ok");
    here.fill(1);
    pair.far.fill(far, 2);
    stream.hold();
    const Transfer sent = take(pair.peer.send(7, here.at(0), kBytes, options));
    const Message receives{.sends = false, .name = far, .offset = 0, .bytes = kBytes, .tag = 7};
    const std::size_t received = take(pair.far.post(receives));
    EXPECT_TRUE(stays_undone(sent));
    here.fill(3);
    stream.go_on();
    EXPECT_EQ(sent.wait(10s).to_string(), "ok");
    EXPECT_EQ(pair.far.end(received).code, "ok");
    EXPECT_EQ(pair.far.difference(far, 2, {{0, 3, 0, kBytes}}), "");
    stream.synchronize();

    pair.far.fill(far, 4);
    stream.hold();
    const Message sends{.sends = true, .name = far, .offset = 0, .bytes = kBytes, .tag = 8};
    const std::size_t theirs = take(pair.far.post(sends));
    const Transfer taken = take(pair.peer.recv(8, here.at(0), kBytes, options));
    const Transfer given_up = take(pair.peer.recv(8, here.at(0), kBytes, options));
    EXPECT_TRUE(stays_undone(taken));
    EXPECT_EQ(given_up.cancel().to_string(), "ok");  // nothing waits for the stream
    EXPECT_EQ(given_up.status().code(), Code::canceled);
    EXPECT_EQ(here.difference(3), "");
    stream.go_on();
    EXPECT_EQ(taken.wait(10s).to_string(), "ok");
    EXPECT_EQ(pair.far.end(theirs).code, "ok");
    EXPECT_EQ(here.difference(3, {{0, 4, 0, kBytes}}), "");
    stream.synchronize();
  }
}

TEST_F(StreamOrderGpu, MessagesWaitForTheStreamAndHoldIt) { messages_wait(); }
TEST_F(StreamOrderGpu, MessagesByTcpDoAsWell) { messages_wait(with_wire(kTcp)); }

/// Also holds if the stream arrives while the messages are polled one after the other.
TEST_F(StreamOrderGpu, MessagesBehindOneStreamKeepTheirOrder) {
  constexpr std::uint64_t kMessages = 400, kEach = 16;
  HeldStream stream;
  Held here;  // outlives the Engine
  Pair pair;
  pair.far.accept();
  here = Held::loose(pair.engine, {.kind = "host", .bytes = kMessages * kEach});
  pair.far.add_loose("there", {.kind = "host", .bytes = kMessages * kEach});
  here.fill(1);
  pair.far.fill("there", 2);
  std::vector<std::size_t> received;
  for (std::uint64_t i = 0; i < kMessages; ++i)
    received.push_back(take(pair.far.post(
        {.sends = false, .name = "there", .offset = i * kEach, .bytes = kEach, .tag = 7})));
  stream.hold();
  std::vector<Transfer> sent;
  for (std::uint64_t i = 0; i < kMessages; ++i)
    sent.push_back(take(
        pair.peer.send(7, here.at(i * kEach), kEach, {.deadline = 20s, .after = stream.order()})));
  stream.go_on();
  for (const Transfer& each : sent) EXPECT_EQ(each.wait(10s).to_string(), "ok");
  for (const std::size_t each : received) EXPECT_EQ(pair.far.end(each).code, "ok");
  EXPECT_EQ(pair.far.difference("there", 2, {{0, 1, 0, kMessages * kEach}}), "");
}

TEST_F(StreamOrderGpu, TakesTheDefaultStreamsByNameOnly) {
  Held here;
  Pair pair;
  here = Held::make(pair.engine, {.kind = "device0", .bytes = kBytes});
  pair.far.add("there", {.kind = "device0", .bytes = kBytes});
  const RemoteRegion there = pair.remote("there");
  here.fill(1);
  pair.far.fill("there", 2);
  const Block whole{0, 0, kBytes};
  const auto write = [&](StreamOrder order) {
    return finished(pair.peer.write(here.region, there, std::span(&whole, 1),
                                    {.after = order, .release = order}));
  };
  using enum StreamOrder::Kind;
  for (const StreamOrder order :
       {StreamOrder{.kind = legacy_default}, StreamOrder{.kind = per_thread_default},
        StreamOrder{.kind = created, .handle = reinterpret_cast<void*>(1)},
        StreamOrder{.kind = created, .handle = reinterpret_cast<void*>(2)}})
    EXPECT_EQ(write(order).to_string(), "ok");
  const Status null = write({.kind = created});
  EXPECT_EQ(null.code(), Code::invalid_argument);
  EXPECT_NE(null.what().find("of the kind `created`: say legacy_default"), std::string::npos)
      << null.what();
  StreamOrder elsewhere{.kind = legacy_default};
  elsewhere.gpu.fill(std::byte{0x5a});
  EXPECT_EQ(write(elsewhere).code(), Code::not_found);
  EXPECT_EQ(pair.far.difference("there", 2, {{0, 1, 0, kBytes}}), "");
}

TEST(StreamOrderCpu, AStreamWithoutAGpuIsRefused) {
  EngineOptions options = engine_options("near");
  options.use_gpu = false;
  Held here;
  FarEngine far;
  Engine engine = take(Engine::open(options));
  const Peer peer = take(engine.connect(far.address()));
  here = Held::make(engine, {.kind = "host", .bytes = 64});
  far.add("there", {.kind = "host", .bytes = 64});
  const RemoteRegion there = take(peer.lookup("there"));
  const Block whole{0, 0, 64};
  EXPECT_EQ(peer.write(here.region, there, std::span(&whole, 1),
                       {.after = {.kind = StreamOrder::Kind::legacy_default}})
                .status()
                .code(),
            Code::unsupported);
}

}  // namespace stream_order_test
}  // namespace linkspan::test
