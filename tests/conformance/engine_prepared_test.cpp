// Tests the ends of prepared transfers: regions that end, peers that die, wrong positions, options.
#include <numeric>

#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/driver_shim/counts.hpp"
#include "tests/support/held_stream.hpp"

namespace linkspan::test {
namespace engine_prepared_test {

constexpr std::uint64_t kMiB = 1u << 20, kPage = 512, kPages = kMiB / kPage;

struct WayCase {
  const char* name;
  Kind near, far;
  bool exclusive = false;
};
void PrintTo(const WayCase& c, std::ostream* out) { *out << c.name; }

constexpr WayCase kWays[] = {{"cpu_threads", kKinds[3], kKinds[4]},
                             {"cross_process", kKinds[3], kKinds[3]},
                             {"by_the_peer", kKinds[4], kKinds[3], true},
                             {"cuda_ipc", kKinds[0], kKinds[1]},
                             {"bounce", kKinds[3], kKinds[3], true}};

class EnginePrepared : public ::testing::TestWithParam<WayCase> {
 protected:
  void SetUp() override {
    const Status status = kinds_here({GetParam().near, GetParam().far});
    if (!status.ok()) GTEST_SKIP() << status.to_string();
    pair_ = std::make_unique<Pair>();
    here_ = Held::make(pair_->engine, {.kind = GetParam().near.name});
    pair_->far.add("there",
                   {.kind = GetParam().far.name,
                    .peers = {.read = true, .write = true, .exclusive = GetParam().exclusive}});
    std::vector<std::uint32_t> all(kPages);
    std::iota(all.rbegin(), all.rend(), 0);
    const Pages pages{kPage, 0, 0, all, all};
    prepared_ = take(pair_->peer.prepare(Op::write, here_.region, pair_->remote("there"), pages));
    here_.fill(1);
    pair_->far.fill("there", 2);
  }

  /// Prepares one of kParts of all pages. Parts in flight together write no byte twice.
  Prepared part(std::uint64_t i) {
    std::vector<std::uint32_t> some(kPages / kParts);
    std::iota(some.begin(), some.end(), static_cast<std::uint32_t>(i * some.size()));
    return take(pair_->peer.prepare(Op::write, here_.region, pair_->remote("there"),
                                    Pages{kPage, 0, 0, some, some}));
  }
  static constexpr std::uint64_t kParts = 16;

  Held here_;  // outlives the Engine
  std::unique_ptr<Pair> pair_;
  Prepared prepared_;
};

TEST_P(EnginePrepared, HoldsTheRegionOfThePeerAndTellsOfItsEnd) {
  EXPECT_EQ(finished(prepared_.post()).to_string(), "ok");
  EXPECT_EQ(pair_->far.difference("there", 2, {{0, 1, 0, kMiB}}), "");
  // The owner of an exclusive region makes all its copies, and waits for no peer.
  const bool exclusive = GetParam().exclusive;
  EXPECT_EQ(pair_->far.deregister("there", 50ms).code(), exclusive ? Code::ok : Code::busy);
  const Status end = finished(prepared_.post());
  EXPECT_EQ(end.code(), Code::unreachable) << end.to_string();
  prepared_ = {};
  if (!exclusive) {
    EXPECT_EQ(pair_->far.deregister("there", 10s).to_string(), "ok");
  }
}

TEST_P(EnginePrepared, AnswersInvalidArgumentAfterDeregister) {
  EXPECT_EQ(finished(prepared_.post()).to_string(), "ok");
  EXPECT_EQ(pair_->engine.deregister(here_.region).to_string(), "ok");
  here_.region = {};
  EXPECT_EQ(prepared_.post().status().code(), Code::invalid_argument);
  const std::uint32_t some[] = {0, 1};
  EXPECT_EQ(prepared_.post(some).status().code(), Code::invalid_argument);
}

TEST_P(EnginePrepared, AnswersInvalidArgumentAfterInvalidateWhichEndsWhatIsInFlight) {
  const Transfer moved = take(prepared_.post());
  EXPECT_EQ(pair_->engine.invalidate(here_.region).to_string(), "ok");
  EXPECT_TRUE(moved.done());
  EXPECT_EQ(prepared_.post().status().code(), Code::invalid_argument);
}

TEST_P(EnginePrepared, AnswersDisconnectedAfterThePeersDeath) {
  std::vector<Prepared> parts;
  for (std::uint64_t i = 0; i < kParts; ++i) parts.push_back(part(i));
  std::vector<Transfer> posted;
  for (const Prepared& each : parts) posted.push_back(take(each.post()));
  pair_->far.process().kill();
  for (const Transfer& each : posted) {
    const Status end = each.wait(2s);
    ASSERT_TRUE(each.done());
    EXPECT_TRUE(end.ok() || end.code() == Code::disconnected) << end.to_string();
  }
  ASSERT_TRUE(is_down(pair_->peer, base::Deadline::after(base::Clock::steady(), 2s)));
  EXPECT_EQ(finished(prepared_.post()).code(), Code::disconnected);
  here_.fill(7);
  EXPECT_EQ(here_.difference(7), "");
  EXPECT_EQ(pair_->engine.deregister(here_.region).to_string(), "ok");
}

TEST_P(EnginePrepared, OutlivesItsEngine) {
  EXPECT_EQ(finished(prepared_.post()).to_string(), "ok");
  EXPECT_EQ(pair_->engine.close(5s).to_string(), "ok");
  EXPECT_EQ(prepared_.post().status().code(), Code::canceled);
  pair_.reset();
  const Status end = prepared_.post().status();
  EXPECT_TRUE(end.code() == Code::canceled || end.code() == Code::disconnected) << end.to_string();
  prepared_ = {};
}

TEST_P(EnginePrepared, AWrongPositionIsNamedAndNothingMoves) {
  const std::uint32_t wrong[] = {0, 1, kPages, 2};
  const Status end = prepared_.post(wrong).status();
  EXPECT_EQ(end.code(), Code::invalid_argument);
  EXPECT_NE(end.what().find("position 2048 of 2048"), std::string::npos) << end.what();
  EXPECT_EQ(pair_->far.difference("there", 2), "");
  const Block block{0, 0, 8};
  const Prepared blocks = take(
      pair_->peer.prepare(Op::write, here_.region, pair_->remote("there"), std::span(&block, 1)));
  EXPECT_EQ(blocks.post(std::span(wrong, 1)).status().code(), Code::invalid_argument);
}

TEST_P(EnginePrepared, DroppedInFlightItStaysUntilItsTransferIsQuiet) {
  std::vector<Transfer> posted;
  for (std::uint64_t i = 0; i < kParts; ++i) posted.push_back(take(part(i).post()));
  for (const Transfer& each : posted) EXPECT_EQ(each.wait(30s).to_string(), "ok");
  EXPECT_EQ(pair_->far.difference("there", 2, {{0, 1, 0, kMiB}}), "");
}

TEST_P(EnginePrepared, TakesTheOptionsOfAWrite) {
  const auto path =
      take(pair_->peer.explain(Op::write, here_.region, pair_->remote("there"), kPages, kMiB)).path;
  EXPECT_EQ(finished(prepared_.post(TransferOptions{.require = path})).to_string(), "ok");
  EXPECT_EQ(prepared_.post(TransferOptions{.require = "!" + path}).status().code(),
            Code::unsupported);
  const std::string text = "it is there";
  const Transfer told = take(prepared_.post(
      TransferOptions{.notification = std::as_bytes(std::span(text.data(), text.size()))}));
  EXPECT_EQ(pair_->far.notifications(1), std::vector<std::string>{text});
  EXPECT_EQ(told.wait(10s).to_string(), "ok");
  EXPECT_EQ(pair_->far.difference("there", 2, {{0, 1, 0, kMiB}}), "");
  if (GetParam().near.kind != MemoryKind::device) return;
  const StreamOrder legacy{.kind = StreamOrder::Kind::legacy_default};
  const std::uint32_t some[] = {5, 3};
  pair_->far.fill("there", 4);
  EXPECT_EQ(finished(prepared_.post(some, {.after = legacy, .release = legacy})).to_string(), "ok");
  EXPECT_EQ(pair_->far.difference("there", 4,
                                  {{(kPages - 6) * kPage, 1, (kPages - 6) * kPage, kPage},
                                   {(kPages - 4) * kPage, 1, (kPages - 4) * kPage, kPage}}),
            "");
}

INSTANTIATE_TEST_SUITE_P(Every, EnginePrepared, ::testing::ValuesIn(kWays),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(EnginePreparedGpu, RunsBehindAHeldStreamAlthoughItsHandleIsGone) {
  if (const Status status = need_gpus(2); !status.ok()) GTEST_SKIP() << status.to_string();
  Held here;
  Pair pair;
  here = Held::make(pair.engine, {.kind = "device0"});
  pair.far.add("there", {.kind = "device1"});
  here.fill(1);
  pair.far.fill("there", 2);
  std::vector<std::uint32_t> all(kPages);
  std::iota(all.begin(), all.end(), 0);
  Prepared prepared = take(pair.peer.prepare(Op::write, here.region, pair.remote("there"),
                                             Pages{kPage, 0, 0, all, all}));
  HeldStream held;
  held.hold();
  const Transfer moved =
      take(prepared.post(TransferOptions{.after = held.order(), .release = held.order()}));
  prepared = {};
  EXPECT_EQ(moved.wait(30ms).code(), Code::pending);
  EXPECT_FALSE(moved.done());
  EXPECT_EQ(pair.far.difference("there", 2), "");
  held.go_on();
  EXPECT_EQ(moved.wait(30s).to_string(), "ok");
  EXPECT_EQ(pair.far.difference("there", 2, {{0, 1, 0, kMiB}}), "");
  held.synchronize();
}

TEST(EnginePreparedGpu, PinsAPageListOnce_WhenManyRegionsHaveIt) {
  DriverCounts counts = DriverCounts::find();
  if (!counts) GTEST_SKIP() << "needs the counting shim";
  if (const Status status = need_gpus(2); !status.ok()) GTEST_SKIP() << status.to_string();
  Held here;
  Pair pair;
  here = Held::make(pair.engine, {.kind = "device0"});
  pair.far.add("there", {.kind = "device1"});
  const RemoteRegion there = pair.remote("there");
  const std::uint32_t list[] = {3, 1, 2};
  const auto pinned_for = [&](std::size_t pairs) {
    const std::vector<Region> local(pairs, here.region);
    const std::vector<RemoteRegion> remote(pairs, there);
    counts.reset();
    EXPECT_EQ(pair.peer.prepare(Op::write, local, remote, Pages{kPage, 0, 0, list, list})
                  .status()
                  .to_string(),
              "ok");
    return counts.read()["cuMemHostAlloc"];
  };
  (void)pinned_for(1);  // the first may set up more
  EXPECT_EQ(pinned_for(8), pinned_for(1));
}

TEST(EnginePreparedShapes, AreCheckedOnce) {
  Held here;
  Pair pair;
  here = Held::make(pair.engine, {.kind = "host"});
  pair.far.add("there", {.kind = "shared"});
  const RemoteRegion there = pair.remote("there");
  const std::uint32_t in[] = {0, 1}, out[] = {0, kPages};
  for (const Pages& wrong : {Pages{kPage, 0, 0, in, out}, Pages{kPage, 0, 0, out, in},
                             Pages{kPage, 0, 0, in, std::span(in, 1)}})
    EXPECT_EQ(pair.peer.prepare(Op::write, here.region, there, wrong).status().code(),
              Code::invalid_argument);
  const Strides wrong{.bytes = 2, .levels = {Strides::Level{kMiB, 1, 1}}};
  EXPECT_EQ(pair.peer.prepare(Op::write, here.region, there, wrong).status().code(),
            Code::invalid_argument);
  EXPECT_EQ(pair.peer.write(here.region, there, wrong).status().code(), Code::invalid_argument);
  EXPECT_EQ(pair.peer.prepare(Op::write, Region(), there, Pages{}).status().code(),
            Code::invalid_argument);
  EXPECT_EQ(Prepared().post().status().code(), Code::invalid_argument);
  EXPECT_FALSE(Prepared().valid());
}

}  // namespace engine_prepared_test
}  // namespace linkspan::test
