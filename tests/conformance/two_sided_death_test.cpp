// Tests a peer that is killed or stopped at each stage of two-sided messages.
#include <signal.h>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace two_sided_death_test {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kTraffic = 12 * kMiB, kParts = 48;

/// The receiver's kind decides which side copies: the sender writes to a GPU, a CPU reads.
struct DeathCase {
  const char* name;
  Kind near, far;
  bool near_sends;
};
void PrintTo(const DeathCase& c, std::ostream* out) { *out << c.name; }
constexpr DeathCase kDeaths[] = {
    {"it_pulls_from_host", kKinds[3], kKinds[3], true},
    {"it_pulls_from_gpu", kKinds[0], kKinds[3], true},
    {"we_push_to_its_gpu", kKinds[3], kKinds[1], true},
    {"we_pull_from_its_host", kKinds[3], kKinds[3], false},
    {"we_pull_from_its_gpu", kKinds[2], kKinds[1], false},
    {"it_pushes_to_our_gpu", kKinds[0], kKinds[1], false},
};

class TwoSidedDeath : public ::testing::TestWithParam<DeathCase> {
 protected:
  void SetUp() override {
    const Status status = kinds_here({GetParam().near, GetParam().far});
    if (!status.ok()) GTEST_SKIP() << status.to_string();
  }
  static Result<Transfer> post(const Peer& peer, std::uint64_t tag, void* data,
                               std::uint64_t bytes) {
    return GetParam().near_sends ? peer.send(tag, data, bytes) : peer.recv(tag, data, bytes);
  }
};

TEST_P(TwoSidedDeath, EndsAllWithinASecond) {
  const DeathCase& c = GetParam();
  Held here;  // outlives the Engine
  Pair pair;
  pair.far.accept();
  here = Held::loose(pair.engine, {.kind = c.near.name, .bytes = kTraffic});
  pair.far.add_loose("there", {.kind = c.far.name, .bytes = kTraffic});
  // Some messages are posted here only, some there only, the others match: one by one, while the
  // first are in flight.
  std::vector<Transfer> transfers;
  for (std::uint64_t i = 0; i < kParts; ++i) {
    const Block part = part_of(kTraffic, i, kParts);
    transfers.push_back(take(post(pair.peer, i, here.at(part.local_offset), part.bytes)));
    if (i % 3 == 0) continue;
    take(pair.far.post({.sends = !c.near_sends,
                        .name = "there",
                        .offset = part.remote_offset,
                        .bytes = part.bytes,
                        .tag = i % 3 == 1 ? i : i + kParts}));
  }
  pair.far.process().kill();
  const auto limit = base::Deadline::after(base::Clock::steady(), 1s);
  for (const Transfer& each : transfers) {
    const Status end = each.wait(limit.left());
    ASSERT_TRUE(each.done()) << "not quiet a second after the peer's death: " << pair.engine.dump();
    EXPECT_TRUE(end.ok() || end.code() == Code::disconnected) << end.to_string();
  }
  EXPECT_EQ(transfers[0].status().code(), Code::disconnected);
  ASSERT_TRUE(is_down(pair.peer, limit));
  EXPECT_EQ(finished(post(pair.peer, 1, here.at(0), 8)).code(), Code::disconnected);

  here.fill(7);  // the memory is ours again, and the Engine serves the next one
  {
    FarEngine next;
    next.add_loose("next", {.kind = c.far.name, .bytes = kMiB});
    next.fill("next", 5);
    const Peer peer = take(pair.engine.connect(next.address()));
    next.accept();
    const auto number =
        take(next.post({.sends = !c.near_sends, .name = "next", .bytes = kMiB, .tag = 1}));
    EXPECT_EQ(finished(post(peer, 1, here.at(0), kMiB)).to_string(), "ok");
    EXPECT_EQ(next.end(number).code, "ok");
    if (c.near_sends) {
      EXPECT_EQ(next.difference("next", 5, {{0, 7, 0, kMiB}}), "");
    }
  }
  const std::vector<Expected> due{{0, 5, 0, kMiB}};
  EXPECT_EQ(here.difference(7, c.near_sends ? std::vector<Expected>{} : due), "");
  EXPECT_EQ(pair.engine.close(5s).to_string(), "ok");
}

INSTANTIATE_TEST_SUITE_P(Every, TwoSidedDeath, ::testing::ValuesIn(kDeaths),
                         [](const auto& param) { return std::string(param.param.name); });

class TwoSidedStopped : public ::testing::Test {
 protected:
  void SetUp() override {
    pair_.far.accept();
    here_ = Held::loose(pair_.engine, {.kind = "host"});
    pair_.far.add_loose("there", {.kind = "host"});
  }
  void stop() { pair_.far.process().signal(SIGSTOP); }
  Held here_;  // outlives the Engine
  Pair pair_;
};

TEST_F(TwoSidedStopped, AnOfferedSendIsQuietOnlyWhenItsPeerHasLetGo) {
  stop();
  const Transfer sent = take(pair_.peer.send(1, here_.at(0), kMiB, {.deadline = 20ms}));
  const Transfer alone = take(pair_.peer.recv(1, here_.at(0), 64, {.deadline = 20ms}));
  EXPECT_EQ(alone.wait(5s).code(), Code::timed_out);
  EXPECT_TRUE(alone.done()) << "the peer knows nothing of it";
  EXPECT_EQ(sent.wait(100ms).code(), Code::pending);
  EXPECT_FALSE(sent.done()) << "a stopped peer can still read the memory";
  EXPECT_EQ(sent.cancel().code(), Code::pending);
  EXPECT_NE(pair_.engine.dump().find("send of 1048576 bytes"), std::string::npos);
  EXPECT_EQ(pair_.engine.close(20ms).code(), Code::pending);
  pair_.far.process().signal(SIGCONT);
  EXPECT_EQ(sent.wait(10s).code(), Code::timed_out);
  EXPECT_TRUE(sent.done());
  EXPECT_EQ(pair_.engine.close(5s).to_string(), "ok");
}

TEST_F(TwoSidedStopped, AKilledOneFreesWhatItCouldTouch) {
  stop();
  const Transfer sent = take(pair_.peer.send(1, here_.at(0), kMiB));
  EXPECT_EQ(sent.cancel().code(), Code::pending);
  pair_.far.process().kill();
  const Status end = sent.wait(1s);
  ASSERT_TRUE(sent.done());
  EXPECT_EQ(end.code(), Code::disconnected) << end.to_string();
}

TEST_F(TwoSidedStopped, CloseEndsWhatIsAlone) {
  const Transfer sent = take(pair_.peer.send(1, here_.at(0), kMiB));
  const Transfer received = take(pair_.peer.recv(2, here_.at(0), kMiB));
  EXPECT_EQ(pair_.engine.close(10s).to_string(), "ok");
  EXPECT_EQ(sent.status().code(), Code::canceled);
  EXPECT_EQ(received.status().code(), Code::canceled);
  EXPECT_EQ(finished(pair_.peer.send(1, here_.at(0), 1)).code(), Code::canceled);
}

TEST_F(TwoSidedStopped, PushesBackAtItsLimit) {
  std::vector<Transfer> sent;
  Status full;
  while (full.ok()) {
    auto posted = pair_.peer.send(3, here_.at(0), 1, {.deadline = 10min});  // none ends meanwhile
    full = posted.status();
    if (posted.ok()) sent.push_back(*posted);
    ASSERT_LE(sent.size(), 16384u);
  }
  EXPECT_EQ(full.code(), Code::no_resource) << full.to_string();
  const auto received = take(pair_.far.post({.name = "there", .bytes = 8, .tag = 3}));
  EXPECT_EQ(pair_.far.end(received).code, "ok");
  EXPECT_EQ(sent.front().wait(20s).to_string(), "ok");
  EXPECT_EQ(finished(pair_.peer.send(3, here_.at(0), 1, {.deadline = 1ns})).code(),
            Code::timed_out);
  pair_.far.process().kill();
  for (const Transfer& each : sent) {
    (void)each.wait(20s);
    ASSERT_TRUE(each.done());
  }
  EXPECT_EQ(sent.back().status().code(), Code::disconnected);
}

}  // namespace two_sided_death_test
}  // namespace linkspan::test
