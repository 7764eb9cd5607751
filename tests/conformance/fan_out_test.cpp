// Tests Engine::write_to_all() from one source to three other processes: every byte of each is
// verified, and failing targets do not disturb the others.
#include <signal.h>

#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/held_stream.hpp"

namespace linkspan::test {
namespace fan_out_test {

constexpr std::uint64_t kBytes = (1u << 20) + 77;
constexpr std::size_t kFar = 3;
constexpr Block kAll{0, 0, kBytes};

using Outcomes = std::vector<Result<Transfer>>;

/// An Engine here and three there, each with a region "there".
class FanOut : public ::testing::Test {
 protected:
  void add(std::size_t at, const MemoryOptions& options) {
    far[at].add("there", options);
    peers.push_back(take(engine.connect(far[at].address())));
    remotes.push_back(take(peers[at].lookup("there")));
    far[at].fill("there", 10 + at);
  }
  void add_all(const char* kind = "shared") {
    for (std::size_t i = 0; i < kFar; ++i) add(i, {.kind = kind, .bytes = kBytes});
    here = Held::make(engine, {.kind = "host", .bytes = kBytes});
    here.fill(1);
  }
  Outcomes write(const TransferOptions& options = {}) {
    return engine.write_to_all(here.region, remotes, std::span(&kAll, 1), options);
  }
  static std::vector<Code> codes(const Outcomes& outcomes) {
    std::vector<Code> all;
    for (const auto& each : outcomes) all.push_back(finished(each).code());
    return all;
  }
  std::string far_difference(std::size_t at, const std::vector<Expected>& due) {
    return far[at].difference("there", 10 + at, due);
  }
  /// Returns an empty text if all of the source has arrived.
  std::string not_there(std::size_t at) { return far_difference(at, {{0, 1, 0, kBytes}}); }

  Held here;  // outlives the Engine
  FarEngine far[kFar];
  Engine engine = take(Engine::open(engine_options("near")));
  std::vector<Peer> peers;
  std::vector<RemoteRegion> remotes;
};

class FanOutKinds : public FanOut, public ::testing::WithParamInterface<Kind> {};

TEST_P(FanOutKinds, BringsEveryShapeToEachKindOfMemory) {
  const Status status = kinds_here({GetParam()});
  if (!status.ok()) GTEST_SKIP() << status.to_string();
  const bool gpu = kinds_here({kKinds[1]}).ok();
  const char* const kinds[] = {"shared", gpu ? "pinned" : "host", gpu ? "device1" : "host"};
  // The second is the smallest, so that a plan of the first does not serve it.
  const std::uint64_t sizes[] = {kBytes + 8192, kBytes, kBytes + 4096};
  for (std::size_t i = 0; i < kFar; ++i) add(i, {.kind = kinds[i], .bytes = sizes[i]});
  here = Held::make(engine, {.kind = GetParam().name, .bytes = kBytes});
  here.fill(1);

  const std::vector<Block> blocks = {{5, 3, 1}, {4097, 70001, 300003}, {kBytes - 9, 999, 9}};
  const std::uint32_t from[] = {3, 0, 200, 9}, to[] = {100, 7, 0, 255};
  const Pages pages{4096, 24, 8, from, to};
  const Strides strides{
      777, 11, 500001, {{{.count = 40, .local_step = 4001, .remote_step = 1009}}}};
  std::vector<Expected> due;
  for (const Block& b : blocks) due.push_back({b.remote_offset, 1, b.local_offset, b.bytes});
  const std::string words = "it is there";
  const TransferOptions tells{.notification = std::as_bytes(std::span(words))};
  const auto moved = [&](const Outcomes& outcomes) {
    ASSERT_EQ(outcomes.size(), kFar);
    for (const auto& each : outcomes) EXPECT_EQ(finished(each).to_string(), "ok");
    for (std::size_t i = 0; i < kFar; ++i) {
      EXPECT_EQ(far[i].notifications(1), std::vector<std::string>{words});
      EXPECT_EQ(far_difference(i, due), "");
    }
  };
  moved(engine.write_to_all(here.region, remotes, blocks, tells));
  for (std::size_t i = 0; i < std::size(from); ++i)
    due.push_back({8 + to[i] * 4096ull, 1, 24 + from[i] * 4096ull, 4096});
  moved(engine.write_to_all(here.region, remotes, pages, tells));
  for (std::uint64_t i = 0; i < 40; ++i) due.push_back({500001 + i * 1009, 1, 11 + i * 4001, 777});
  moved(engine.write_to_all(here.region, remotes, strides, tells));
  EXPECT_EQ(here.difference(1), "");
}

INSTANTIATE_TEST_SUITE_P(Every, FanOutKinds, ::testing::ValuesIn(kKinds),
                         [](const auto& param) { return std::string(param.param.name); });

TEST_F(FanOut, BringsHundredsOfOddTensorsInOneCall) {
  std::vector<Block> tensors;
  std::uint64_t local = 0, remote = 3;
  for (std::uint64_t i = 0; i < 300; ++i) {
    const std::uint64_t bytes = i * i / 7 * 2 + 1;
    tensors.push_back({local, remote, bytes});
    local += bytes + i % 3;
    remote += bytes + 1 + i % 64;
  }
  add(0, {.kind = "shared", .bytes = remote});
  add(1, {.kind = "host", .bytes = remote});
  here = Held::make(engine, {.kind = "host", .bytes = local});
  here.fill(1);
  const Outcomes outcomes = engine.write_to_all(here.region, remotes, tensors);
  EXPECT_EQ(codes(outcomes), (std::vector{Code::ok, Code::ok}));
  std::vector<Expected> due;
  for (const Block& b : tensors) due.push_back({b.remote_offset, 1, b.local_offset, b.bytes});
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(far_difference(i, due), "");
}

TEST_F(FanOut, ATargetThatIsTooSmallIsRefusedAlone) {
  for (const std::size_t small : {0u, 1u, 2u}) {
    SCOPED_TRACE(small);
    const std::string name = "small " + std::to_string(small);
    if (peers.empty()) add_all();
    far[small].add(name, {.kind = "shared", .bytes = kBytes - 1});
    std::vector<RemoteRegion> targets = remotes;
    targets[small] = take(peers[small].lookup(name));
    const Outcomes outcomes = engine.write_to_all(here.region, targets, std::span(&kAll, 1));
    for (std::size_t i = 0; i < kFar; ++i) {
      EXPECT_EQ(finished(outcomes[i]).code(), i == small ? Code::invalid_argument : Code::ok);
      if (i == small) continue;
      EXPECT_EQ(not_there(i), "");
      far[i].fill("there", 10 + i);
    }
  }
}

TEST_F(FanOut, ATargetThatWasKilledBeforeEndsAlone) {
  add_all();
  far[1].process().kill();
  ASSERT_TRUE(is_down(peers[1], base::Deadline::after(base::Clock::steady(), 5s)));
  EXPECT_EQ(codes(write()), (std::vector{Code::ok, Code::disconnected, Code::ok}));
  EXPECT_EQ(not_there(0), "");
  EXPECT_EQ(not_there(2), "");
}

/// Only the second target's own process can copy into it, and that process is stopped.
class FanOutStopped : public FanOut {
 protected:
  void SetUp() override {
    add(0, {.kind = "shared", .bytes = kBytes});
    add(1, {.kind = "host", .bytes = kBytes, .peers = {true, true, true}});
    add(2, {.kind = "host", .bytes = kBytes});
    here = Held::make(engine, {.kind = "shared", .bytes = kBytes});
    here.fill(1);
    far[1].process().signal(SIGSTOP);
  }
  void others_are_there(const Outcomes& outcomes) {
    for (const std::size_t i : {0u, 2u}) {
      EXPECT_EQ(finished(outcomes[i]).to_string(), "ok");
      EXPECT_EQ(not_there(i), "");
    }
  }
};

TEST_F(FanOutStopped, ATargetThatIsKilledInTheMidstEndsAlone) {
  const Outcomes outcomes = write();
  others_are_there(outcomes);
  const Transfer stuck = take(outcomes[1]);
  EXPECT_FALSE(stuck.done());
  far[1].process().kill();
  const Status end = stuck.wait(2s);
  ASSERT_TRUE(stuck.done());
  EXPECT_EQ(end.code(), Code::disconnected) << end.to_string();
  EXPECT_EQ(here.difference(1), "");
  here.fill(2);  // all are quiet: it is ours again
  EXPECT_EQ(not_there(0), "");
}

TEST_F(FanOutStopped, ATargetThatIsFullIsRefusedAlone) {
  Status full;
  while (full.ok()) {
    const Block one{0, 0, 1};
    full = peers[1].write(here.region, remotes[1], std::span(&one, 1)).status();
  }
  ASSERT_EQ(full.code(), Code::no_resource);
  const Outcomes outcomes = write();
  EXPECT_EQ(outcomes[1].status().code(), Code::no_resource);
  others_are_there(outcomes);
  far[1].process().kill();
}

TEST_F(FanOutStopped, TheStreamOfOneTargetIsNoOthersDelay) {
  const Status status = kinds_here({kKinds[0]});
  if (!status.ok()) GTEST_SKIP() << status.to_string();
  HeldStream stream;
  std::swap(remotes[0], remotes[1]);  // the first holds the stream that all run after
  const Outcomes outcomes = write({.after = stream.order(), .release = stream.order()});
  for (const std::size_t i : {1u, 2u}) EXPECT_EQ(finished(outcomes[i]).to_string(), "ok");
  EXPECT_FALSE(take(outcomes[0]).done());
  far[1].process().signal(SIGCONT);
  EXPECT_EQ(finished(outcomes[0]).to_string(), "ok");
  stream.synchronize();
  for (std::size_t i = 0; i < kFar; ++i) EXPECT_EQ(not_there(i), "");
}

TEST_F(FanOut, RefusesWhatIsNoTargetInItsPlace) {
  add_all();
  Engine other = take(Engine::open(engine_options("other")));
  const Peer its = take(other.connect(far[0].address()));
  const std::vector<RemoteRegion> targets = {remotes[0], take(its.lookup("there")), {}, remotes[2]};
  const Outcomes outcomes = engine.write_to_all(here.region, targets, std::span(&kAll, 1));
  EXPECT_EQ(codes(outcomes),
            (std::vector{Code::ok, Code::invalid_argument, Code::invalid_argument, Code::ok}));
  EXPECT_NE(outcomes[1].status().what().find("another Engine"), std::string::npos)
      << outcomes[1].status().to_string();
  EXPECT_EQ(not_there(0), "");
  EXPECT_EQ(not_there(2), "");

  EXPECT_TRUE(engine.write_to_all(here.region, {}, std::span(&kAll, 1)).empty());
  const std::vector none(kFar, Code::invalid_argument);
  EXPECT_EQ(codes(engine.write_to_all(Region(), remotes, std::span(&kAll, 1))), none);
  const Block outside{1, 0, kBytes};
  EXPECT_EQ(codes(engine.write_to_all(here.region, remotes, std::span(&outside, 1))), none);
  must(engine.deregister(here.region));
  EXPECT_EQ(codes(write()), none);
  Engine moved = std::move(engine);
  // NOLINTNEXTLINE(bugprone-use-after-move): it says so to each
  EXPECT_EQ(codes(engine.write_to_all(here.region, remotes, std::span(&kAll, 1))), none);
  engine = std::move(moved);
}

}  // namespace fan_out_test
}  // namespace linkspan::test
