// Tests transfers by RDMA whose devices or links go away in their midst, and whose peer's process
// is stopped. Every byte is verified. LINKSPAN_FAILOVER_ROUNDS is the number of losses of each
// kind.
#include <signal.h>

#include <cstdlib>
#include <random>
#include <string>

#include "tests/conformance/wire_pair.hpp"
#include "tests/support/fake_verbs/controls.hpp"

namespace linkspan::test {
namespace verbs_test {

constexpr std::uint64_t kBytes = 4u << 20;
constexpr Block kFirst{0, 0, kBytes / 2}, kSecond{kBytes / 2, kBytes / 2, kBytes / 2};
constexpr unsigned kDevices = 2;  // of the simulated library

class Verbs : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (Status status = kinds_by(kVerbs, {GetParam()}); !status.ok())
      GTEST_SKIP() << status.to_string();
    fake_ = FakeVerbs::find(file_beside_this_program("libfake_verbs.so").c_str());
    ASSERT_TRUE(fake_);
    fake_.reset();
  }
  void TearDown() override {
    if (fake_) fake_.reset();
  }
  static MemoryOptions memory() { return {.kind = GetParam().name, .bytes = kBytes}; }

  FakeVerbs fake_;
};

/// Returns the value of a metric of the Engine's only peer.
std::uint64_t metric(const Engine& engine, const std::string& name) {
  const std::string all = engine.metrics();
  const std::size_t at = all.find("\nlinkspan_" + name + "{");
  return at == all.npos ? 0 : std::stoull(all.substr(all.find("} ", at) + 2));
}

TEST_P(Verbs, ReachHostMemoryOfAStoppedProcess) {
  if (GetParam().kind == MemoryKind::device) return;  // its process flushes what was written
  Held here;
  WirePair pair(kVerbs);
  here = Held::make(pair.engine, memory());
  pair.far.add("there", memory());
  const RemoteRegion there = pair.remote("there");
  here.fill(1);
  pair.far.fill("there", 2);
  ASSERT_TRUE(
      finished(move(pair.peer, Op::write, here.region, there, {0, 0, 1}, by_wire(kVerbs))).ok());
  pair.far.process().signal(SIGSTOP);
  EXPECT_EQ(
      finished(move(pair.peer, Op::write, here.region, there, kFirst, by_wire(kVerbs))).to_string(),
      "ok");
  EXPECT_EQ(
      finished(move(pair.peer, Op::read, here.region, there, kSecond, by_wire(kVerbs))).to_string(),
      "ok");
  pair.far.process().signal(SIGCONT);
  EXPECT_EQ(pair.far.difference("there", 2, {{0, 1, 0, kBytes / 2}}), "");
  EXPECT_EQ(here.difference(1, {{kBytes / 2, 2, kBytes / 2, kBytes / 2}}), "");
}

TEST_P(Verbs, GoOnByTcp_WhenEveryDeviceOrLinkGoesAway) {
  const char* const set = std::getenv("LINKSPAN_FAILOVER_ROUNDS");
  const unsigned rounds = set != nullptr ? static_cast<unsigned>(std::atoi(set)) : 4;
  std::mt19937_64 random(std::random_device{}());
  unsigned moved = 0;
  for (unsigned round = 0; round < 2 * rounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    fake_.reset();
    Held here;
    WirePair pair(kVerbs);
    here = Held::make(pair.engine, memory());
    pair.far.add("there", memory());
    const RemoteRegion there = pair.remote("there");
    here.fill(1);
    pair.far.fill("there", 2);
    if (round / 2 % 2 == 0) {  // else queue pairs are being made
      ASSERT_TRUE(
          finished(move(pair.peer, Op::write, here.region, there, {0, 0, 1}, by_wire(kVerbs)))
              .ok());
    }
    ASSERT_EQ(fake_.set("rate", 100'000'000), 0);  // 20 ms for all
    TransferOptions notifies;
    notifies.notification = std::as_bytes(std::span("done", 4));
    const auto wrote = move(pair.peer, Op::write, here.region, there, kFirst, notifies);
    const auto read = move(pair.peer, Op::read, here.region, there, kSecond, {});
    const auto strike = base::Deadline::in(std::chrono::microseconds(random() % 25'000));
    while (!strike.passed()) (void)pair.engine.progress();
    for (unsigned i = 0; i < kDevices; ++i) round % 2 == 0 ? fake_.lose(i) : fake_.set_port(i, 0);
    ASSERT_EQ(finished(wrote).to_string(), "ok") << pair.engine.dump();
    ASSERT_EQ(finished(read).to_string(), "ok") << pair.engine.dump();
    EXPECT_EQ(pair.far.notifications(1), std::vector<std::string>{"done"});
    ASSERT_EQ(pair.far.difference("there", 2, {{0, 1, 0, kBytes / 2}}), "");
    ASSERT_EQ(here.difference(1, {{kBytes / 2, 2, kBytes / 2, kBytes / 2}}), "");
    moved += metric(pair.engine, "failovers_total") != 0 ? 1 : 0;
    // Later ones know.
    here.fill(3);
    ASSERT_EQ(finished(move(pair.peer, Op::write, here.region, there, kSecond, {})).to_string(),
              "ok");
    EXPECT_EQ(pair.far.difference("there", 2,
                                  {{0, 1, 0, kBytes / 2}, {kBytes / 2, 3, kBytes / 2, kBytes / 2}}),
              "");
    const auto explained = take(pair.peer.explain(Op::write, here.region, there, 1, kBytes));
    EXPECT_EQ(explained.path, "tcp");
    ASSERT_FALSE(explained.refused.empty());
    EXPECT_EQ(explained.refused.front().path, "verbs");
    TransferOptions unwilling;
    unwilling.failover = false;
    const Status refused =
        move(pair.peer, Op::write, here.region, there, kFirst, unwilling).status();
    EXPECT_EQ(refused.code(), Code::unreachable) << refused.to_string();
  }
  EXPECT_GT(moved, rounds / 2) << "this test shows little";
}

/// Its calls wait for an answer of the card, which may take long.
TEST_P(Verbs, ADeviceThatIsSlowToEndAQueuePairDelaysNothingElse) {
  Held here, other;
  WirePair pair(kVerbs);
  here = Held::make(pair.engine, memory());
  other = Held::make(pair.engine, memory());
  pair.far.add("there", memory());
  pair.far.add("beside", memory());
  const RemoteRegion there = pair.remote("there"), beside = pair.remote("beside");
  here.fill(1);
  other.fill(3);
  pair.far.fill("there", 2);
  pair.far.fill("beside", 4);
  ASSERT_TRUE(
      finished(move(pair.peer, Op::write, here.region, there, {0, 0, 1}, by_wire(kVerbs))).ok());
  ASSERT_EQ(fake_.set("rate", 100'000'000), 0);
  ASSERT_EQ(fake_.set("destroy_us", 2'000'000), 0);
  const auto slow = take(move(pair.peer, Op::write, here.region, there, kFirst, {}));
  for (unsigned i = 0; i < kDevices; ++i) fake_.set_port(i, 0);
  const base::Time begin = base::Clock::steady().now();
  Duration longest{};
  while (!slow.done()) {
    const base::Time now = base::Clock::steady().now();
    ASSERT_LT(now - begin, 20s) << pair.engine.dump();
    ASSERT_EQ(
        finished(move(pair.peer, Op::write, other.region, beside, {5, 7, 1001}, {.require = "tcp"}))
            .to_string(),
        "ok");
    EXPECT_NE(pair.engine.dump(), "");
    EXPECT_NE(pair.engine.metrics(), "");
    longest = std::max<Duration>(longest, base::Clock::steady().now() - now);
  }
  EXPECT_GT(base::Clock::steady().now() - begin, 1900ms) << "its memory was in use until then";
  EXPECT_LT(longest, 1500ms);
  EXPECT_EQ(slow.wait(0s).to_string(), "ok");
  EXPECT_EQ(pair.far.difference("there", 2, {{0, 1, 0, kBytes / 2}}), "");
  EXPECT_EQ(pair.far.difference("beside", 4, {{7, 3, 5, 1001}}), "");
  ASSERT_EQ(fake_.set("destroy_us", 0), 0);
}

INSTANTIATE_TEST_SUITE_P(Every, Verbs, ::testing::Values(kKinds[3], kKinds[0]),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace verbs_test
}  // namespace linkspan::test
