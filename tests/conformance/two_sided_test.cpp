// Tests send and recv: either side first, any memory, every byte verified. What does not match,
// does not fit or is taken back ends with a true status and leaves the connection unchanged.
#include <cstdlib>
#include <map>
#include <tuple>

#include "linkspan/compat/ipc.hpp"
#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace two_sided_test {

constexpr std::uint64_t kMiB = 1u << 20;
/// Sanitizers (cmake/tests.cmake) take their time.
const std::uint64_t kLarge = (std::getenv("LINKSPAN_TEST_LARGE") != nullptr ? 8 : 1) * kMiB + 7;
const std::uint64_t kBytes = kLarge + kMiB;

/// A far process with unregistered memory of every kind on both sides.
class TwoSidedWorld {
 public:
  explicit TwoSidedWorld(const std::vector<std::string>& environment = {},
                         std::uint64_t bytes = kBytes)
      : pair_(environment) {
    pair_.far.accept();
    for (const Kind& kind : kKinds) {
      if (!kinds_here({kind}).ok()) continue;
      pair_.far.add_loose(kind.name, {.kind = kind.name, .bytes = bytes});
      here_[kind.name] = Held::loose(pair_.engine, {.kind = kind.name, .bytes = bytes});
    }
  }
  Pair& pair() { return pair_; }
  FarEngine& far() { return pair_.far; }
  Peer& peer() { return pair_.peer; }
  Held& here(const std::string& kind) { return here_.at(kind); }

  enum class First { sender, receiver };
  /// Moves `bytes` bytes there or back, and verifies every byte of both sides.
  void move(const std::string& near, const std::string& far, bool sends, First first,
            std::uint64_t bytes, std::optional<std::uint64_t> tag = 1) {
    const std::uint64_t from = 5 + bytes % 3, to = 11, room = bytes + bytes % 2;
    const std::uint64_t ours = ++seeds_, theirs = ++seeds_;
    here(near).fill(ours);
    pair_.far.fill(far, theirs);
    const Message theirs_posted{.sends = !sends,
                                .name = far,
                                .offset = sends ? to : from,
                                .bytes = sends ? room : bytes,
                                .tag = tag};
    const bool we_begin = (first == First::sender) == sends;
    std::size_t number = 0;
    if (!we_begin) number = take(pair_.far.post(theirs_posted));
    const Transfer moved = take(post(sends, tag, near, sends ? from : to, sends ? bytes : room));
    if (we_begin) number = take(pair_.far.post(theirs_posted));
    EXPECT_EQ(moved.wait(20s).to_string(), "ok") << pair_.engine.dump();
    const FarEnd end = pair_.far.end(number);
    EXPECT_EQ(end.code, "ok") << end.what;
    EXPECT_EQ(moved.bytes(), bytes);
    EXPECT_EQ(end.bytes, bytes);
    const Expected due{to, sends ? ours : theirs, from, bytes};
    EXPECT_EQ(here(near).difference(ours, sends ? std::vector<Expected>{} : std::vector{due}), "");
    EXPECT_EQ(pair_.far.difference(far, theirs, sends ? std::vector{due} : std::vector<Expected>{}),
              "");
  }
  Result<Transfer> post(bool sends, std::optional<std::uint64_t> tag, const std::string& kind,
                        std::uint64_t offset, std::uint64_t bytes, Duration deadline = {}) {
    std::byte* const data = here(kind).at(offset);
    const TransferOptions options{.deadline = deadline};
    const std::uint64_t conn_id = pair_.peer.id();
    if (!tag)
      return sends ? compat::send_ipc_async(pair_.engine, conn_id, data, bytes, deadline)
                   : compat::recv_ipc_async(pair_.engine, conn_id, data, bytes, deadline);
    return sends ? pair_.peer.send(*tag, data, bytes, options)
                 : pair_.peer.recv(*tag, data, bytes, options);
  }

 private:
  std::map<std::string, Held> here_;  // outlives the Engine
  Pair pair_;
  std::uint64_t seeds_ = 300;
};
using First = TwoSidedWorld::First;

class TwoSidedPairs : public ::testing::TestWithParam<std::tuple<Kind, Kind>> {
 protected:
  static void SetUpTestSuite() { world_ = std::make_unique<TwoSidedWorld>(); }
  static void TearDownTestSuite() { world_.reset(); }
  void SetUp() override {
    const Status status = kinds_here({std::get<0>(GetParam()), std::get<1>(GetParam())});
    if (!status.ok()) GTEST_SKIP() << status.to_string();
  }
  inline static std::unique_ptr<TwoSidedWorld> world_;
};

TEST_P(TwoSidedPairs, MovesBothWaysWhoeverComesFirst) {
  const auto& [near, far] = GetParam();
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4097}, kLarge})
    for (const bool sends : {true, false})
      for (const First first : {First::sender, First::receiver}) {
        SCOPED_TRACE(std::to_string(bytes) + (sends ? " out" : " in") +
                     (first == First::sender ? ", sender first" : ", receiver first"));
        world_->move(near.name, far.name, sends, first, bytes);
      }
}

TEST_P(TwoSidedPairs, MovesByIpcToo) {
  const auto& [near, far] = GetParam();
  for (const bool sends : {true, false})
    world_->move(near.name, far.name, sends, First::sender, kMiB + 3, std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(Every, TwoSidedPairs,
                         ::testing::Combine(::testing::ValuesIn(kKinds),
                                            ::testing::ValuesIn(kKinds)),
                         [](const auto& param) {
                           return std::string(std::get<0>(param.param).name) + "_and_" +
                                  std::get<1>(param.param).name;
                         });

class TwoSided : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { world_ = std::make_unique<TwoSidedWorld>(); }
  static void TearDownTestSuite() { world_.reset(); }
  /// Checks that the connection works and nothing is queued, whatever happened before.
  void TearDown() override {
    world_->move("host", "host", true, First::sender, 4097);
    world_->move("host", "host", false, First::receiver, 4097);
    EXPECT_EQ(world_->pair().engine.dump().find("transfer "), std::string::npos)
        << world_->pair().engine.dump();
  }
  inline static std::unique_ptr<TwoSidedWorld> world_;
};

TEST_F(TwoSided, MatchesEachTagInItsOwnOrder) {
  world_->here("host").fill(1);
  world_->far().fill("host", 2);
  std::vector<Transfer> sent;
  std::vector<std::size_t> received;
  std::vector<Expected> due;
  for (std::uint64_t i = 0; i < 30; ++i)
    sent.push_back(take(world_->post(true, i % 3, "host", 1000 * i, 100 + i)));
  for (const std::uint64_t tag :
       {2u, 0u, 1u})  // each tag's messages in the order in which they were sent
    for (std::uint64_t i = tag; i < 30; i += 3) {
      received.push_back(
          take(world_->far().post({.name = "host", .offset = 2000 * i, .bytes = 500, .tag = tag})));
      due.push_back({2000 * i, 1, 1000 * i, 100 + i});
    }
  for (const Transfer& each : sent) EXPECT_EQ(each.wait(20s).to_string(), "ok");
  for (const std::size_t each : received) EXPECT_EQ(world_->far().end(each).code, "ok");
  EXPECT_EQ(world_->far().difference("host", 2, due), "");
}

TEST_F(TwoSided, TagsAndIpcDoNotMix) {
  world_->here("host").fill(1);
  world_->far().fill("host", 2);
  const Transfer tagged = take(world_->post(true, 0, "host", 0, 10));
  const Transfer ipc = take(world_->post(true, std::nullopt, "host", 100, 20));
  const auto by_ipc = take(world_->far().post({.name = "host", .bytes = 50, .tag = std::nullopt}));
  EXPECT_EQ(world_->far().end(by_ipc).bytes, 20u);
  EXPECT_FALSE(tagged.done());
  const auto by_tag =
      take(world_->far().post({.name = "host", .offset = 200, .bytes = 50, .tag = 0}));
  EXPECT_EQ(world_->far().end(by_tag).bytes, 10u);
  EXPECT_EQ(tagged.wait(10s).to_string(), "ok");
  EXPECT_EQ(ipc.wait(10s).to_string(), "ok");
  EXPECT_EQ(world_->far().difference("host", 2, {{0, 1, 100, 20}, {200, 1, 0, 10}}), "");
}

TEST_F(TwoSided, AMessageThatIsTooLargeIsTruncatedOnBothSides) {
  for (const std::string kind : {"host", "device0"}) {  // pulled; pushed
    if (!kinds_here({kind_of(kind)}).ok()) continue;
    world_->far().fill(kind, 2);
    const Transfer sent = take(world_->post(true, 5, "host", 0, 1001));
    const auto received = take(world_->far().post({.name = kind, .bytes = 1000, .tag = 5}));
    const FarEnd end = world_->far().end(received);
    for (const std::string& text : {end.what, sent.wait(10s).what()}) {
      EXPECT_NE(text.find("1001"), std::string::npos) << text;
      EXPECT_NE(text.find("1000"), std::string::npos) << text;
    }
    EXPECT_EQ(end.code, "truncated");
    EXPECT_EQ(end.bytes, 0u);
    EXPECT_EQ(sent.status().code(), Code::truncated);
    EXPECT_EQ(world_->far().difference(kind, 2), "");
    world_->move("host", kind, true, First::sender, 1000, 5);  // both were consumed
  }
}

TEST_F(TwoSided, ATagThatNobodyPostsTimesOut) {
  for (const bool sends : {true, false}) {
    const Transfer alone = take(world_->post(sends, 77, "host", 0, 64, 50ms));
    EXPECT_EQ(alone.wait(10s).code(), Code::timed_out);
    ASSERT_TRUE(alone.done());
    EXPECT_EQ(alone.status().code(), Code::timed_out) << alone.status().to_string();
    EXPECT_NE(alone.status().what().find("nobody"), std::string::npos) << alone.status().what();
    world_->move("host", "shared", sends, First::sender, 333, 77);  // it stands in no line
    const auto far = take(world_->far().post(
        {.sends = sends, .name = "host", .bytes = 9, .tag = 78, .deadline = 50ms}));
    EXPECT_EQ(world_->far().end(far).code, "timed_out");
    world_->move("host", "shared", !sends, First::sender, 333, 78);
  }
}

TEST_F(TwoSided, WhatIsCanceledMatchesNothing) {
  for (const bool sends : {true, false}) {
    const Transfer canceled = take(world_->post(sends, 6, "host", 0, 64));
    const Status asked = canceled.cancel();
    EXPECT_TRUE(asked.ok() || asked.code() == Code::pending) << asked.to_string();
    EXPECT_EQ(canceled.wait(10s).code(), Code::canceled);
    EXPECT_EQ(canceled.bytes(), sends ? 64u : 0u);
    world_->move("host", "host", sends, First::receiver, 100, 6);
  }
}

TEST_F(TwoSided, ACancelRacesWithTheMatch) {
  world_->far().fill("host", 2);
  for (int i = 0; i < 60; ++i) {
    const bool sends = i % 2 == 0, ours = i % 4 < 2;
    const std::string there = i % 3 == 0 && kinds_here({kKinds[0]}).ok() ? "device0" : "host";
    const Transfer near = take(world_->post(sends, 8, "host", 0, 64));
    const std::size_t far =
        take(world_->far().post({.sends = !sends, .name = there, .bytes = 64, .tag = 8}));
    if (ours)
      (void)near.cancel();
    else
      (void)world_->far().cancel(far);
    // One of both was canceled. Either it ended so, or the message was faster. The other one is
    // moved, was matched meanwhile, or is still alone.
    if (ours) {
      const Status end = near.wait(10s);
      ASSERT_TRUE(near.done()) << world_->pair().engine.dump();
      ASSERT_TRUE(end.ok() || end.code() == Code::canceled) << end.to_string();
      if (!end.ok()) (void)world_->far().cancel(far);
      const FarEnd other = world_->far().end(far);
      ASSERT_TRUE(other.code == (end.ok() ? "ok" : "canceled")) << other.code << other.what;
    } else {
      const FarEnd end = world_->far().end(far);
      ASSERT_TRUE(end.code == "ok" || end.code == "canceled") << end.code << end.what;
      if (end.code != "ok") (void)near.cancel();
      const Status other = near.wait(10s);
      ASSERT_TRUE(near.done()) << world_->pair().engine.dump();
      ASSERT_EQ(std::string(name_of(other.code())), end.code) << other.to_string();
    }
  }
}

TEST_F(TwoSided, RefusesWhatItCannotMove) {
  Peer& peer = world_->peer();
  std::byte* const data = world_->here("host").at(0);
  const auto code = [](const Result<Transfer>& posted) { return finished(posted).code(); };
  EXPECT_EQ(code(peer.send(1, nullptr, 8)), Code::invalid_argument);
  EXPECT_EQ(code(peer.recv(1, data, ~std::uint64_t{0})), Code::invalid_argument);
  EXPECT_EQ(code(peer.send(1, reinterpret_cast<void*>(4096), 8)), Code::invalid_argument);
  const std::byte note{};
  EXPECT_EQ(code(peer.send(1, data, 8, {.notification = std::span(&note, 1)})),
            Code::invalid_argument);
  TransferOptions ordered;
  ordered.after.kind = StreamOrder::Kind::legacy_default;
  EXPECT_EQ(code(peer.send(1, data, 8, ordered)),  // of which GPU?
            need_gpus(1).ok() ? Code::invalid_argument : Code::unsupported);
  EXPECT_EQ(code(Peer().send(1, data, 8)), Code::invalid_argument);
  EXPECT_EQ(compat::send_ipc(world_->pair().engine, 99, data, 8).code(), Code::not_found);
}

TEST_F(TwoSided, APathThatIsNotTheOneRequiredIsRefusedOnBothSides) {
  const auto received = take(world_->far().post({.name = "host", .bytes = 64, .tag = 9}));
  const Transfer sent =
      take(world_->peer().send(9, world_->here("host").at(0), 64, {.require = "cuda_ipc"}));
  EXPECT_EQ(sent.wait(10s).code(), Code::unsupported) << sent.status().to_string();
  EXPECT_EQ(world_->far().end(received).code, "unsupported");
}

TEST_F(TwoSided, BouncesWhereTheKernelDoesNotCopy) {
  TwoSidedWorld world({kNoCrossProcess}, 9 * kMiB);  // the far end pulls
  world.move("host", "host", true, First::sender, 8 * kMiB + 7);
  world.move("host", "host", true, First::receiver, 4097);
  const auto received = take(world.far().post({.name = "host", .bytes = 64, .tag = 9}));
  const Transfer sent =
      take(world.peer().send(9, world.here("host").at(0), 64, {.require = "bounce"}));
  EXPECT_EQ(sent.wait(10s).to_string(), "ok");
  EXPECT_EQ(world.far().end(received).code, "ok");
}

class TwoSidedGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const Status status = need_gpus(2);
    if (!status.ok()) GTEST_SKIP() << status.to_string();
  }
};

TEST_F(TwoSidedGpu, MemoryThatWasFreedAndAllocatedAgainIsAnother) {
  Pair pair;
  pair.far.accept();
  pair.far.add_loose("there", {.kind = "device1"});
  for (std::uint64_t round = 0; round < 6; ++round) {
    // Mostly at the same address as before, sometimes larger, and not kept.
    const Held here =
        Held::loose(pair.engine, {.kind = "device0", .bytes = kMiB + (round % 3) * kMiB});
    here.buffer->fill(round);
    pair.far.fill("there", 50);
    const auto received = take(pair.far.post({.name = "there", .bytes = kMiB}));
    const Transfer sent = take(pair.peer.send(1, here.at(round), kMiB - round));
    EXPECT_EQ(sent.wait(20s).to_string(), "ok");
    EXPECT_EQ(pair.far.end(received).code, "ok");
    EXPECT_EQ(pair.far.difference("there", 50, {{0, round, round, kMiB - round}}), "");
    const auto back = take(pair.far.post({.sends = true, .name = "there", .bytes = kMiB / 2}));
    const Transfer got = take(pair.peer.recv(1, here.at(0), kMiB));
    EXPECT_EQ(got.wait(20s).to_string(), "ok");
    EXPECT_EQ(pair.far.end(back).code, "ok");
    EXPECT_EQ(here.difference(round, {{0, round, round, kMiB / 2}}), "");
  }
}

TEST_F(TwoSidedGpu, KeepsSomeAllocationsAndForgetsOthers) {
  constexpr std::uint64_t kSmall = 4099;
  std::vector<Held> all;  // outlives the Engine
  Pair pair;
  pair.far.accept();
  pair.far.add_loose("there", {.kind = "host", .bytes = kSmall});
  for (std::uint64_t i = 0; i < 70; ++i)
    all.push_back(Held::loose(pair.engine, {.kind = "device0", .bytes = kSmall}));
  for (std::uint64_t round = 0; round < 2; ++round)
    for (std::uint64_t i = 0; i < all.size(); i += 1 + 8 * round) {
      all[i].fill(i + 100 * round);
      pair.far.fill("there", 999);
      const auto received = take(pair.far.post({.name = "there", .bytes = kSmall}));
      EXPECT_EQ(finished(pair.peer.send(1, all[i].at(0), kSmall)).to_string(), "ok");
      EXPECT_EQ(pair.far.end(received).code, "ok");
      EXPECT_EQ(pair.far.difference("there", 999, {{0, i + 100 * round, 0, kSmall}}), "");
    }
}

TEST_F(TwoSidedGpu, MovesBetweenTwoEnginesOfOneProcess) {
  Held here, there;
  Engine one = take(Engine::open(engine_options("one")));
  Engine two = take(Engine::open(engine_options("two")));
  must(two.listen());
  const Peer to = take(one.connect(two.address())), from = take(two.accept(10s));
  for (const auto& [near, far] : {std::pair("host", "host"), std::pair("device0", "host"),
                                  std::pair("host", "device1"), std::pair("device1", "device0")}) {
    here = Held::loose(one, {.kind = near});
    there = Held::loose(two, {.kind = far});
    here.fill(1);
    there.fill(2);
    const Transfer sent = take(to.send(4, here.at(3), kMiB - 5));
    EXPECT_EQ(finished(from.recv(4, there.at(1), kMiB - 1)).to_string(), "ok");
    EXPECT_EQ(sent.wait(10s).to_string(), "ok");
    EXPECT_EQ(there.difference(2, {{1, 1, 3, kMiB - 5}}), "");
  }
}

}  // namespace two_sided_test
}  // namespace linkspan::test
