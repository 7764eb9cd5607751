// Tests that the same two Engines connect again over TCP when a connection has stalled and one or
// both have noticed: new objects work at once and are not confused with the old ones.
#include <atomic>
#include <cstddef>

#include "control/socket_address.hpp"
#include "linkspan/window.hpp"
#include "tests/conformance/engine_world.hpp"
#include "tests/faults/usage.hpp"
#include "tests/support/delay_line.hpp"
#include "tests/support/sanitizer_order.hpp"

namespace linkspan::test {
namespace again_test {

constexpr std::uint64_t kBytes = 4u << 20, kCount = 8;
constexpr Block kAll{0, 0, kBytes};
constexpr device::PadLayout kLayout{.signals = 8, .mailboxes = 1, .mailbox_bytes = 1024};

enum class Notices : std::uint8_t { near, far, both };
constexpr const char* kNames[] = {"Near", "Far", "Both"};

class Again : public ::testing::TestWithParam<Notices> {
 protected:
  void SetUp() override {
    const auto at = take(control::parse_address(far_.address(), ""));
    line_ = take(DelayLine::start(take(net::resolve("127.0.0.1", 0)).front(),
                                  take(net::resolve(at.host, at.port)).front(), {}));
    here_ = Held::make(engine_, {.kind = "host", .bytes = kBytes});
    must(engine_.publish("here", here_.region));
    pad_ = take(engine_.allocate_shared(kLayout.bytes()));
    far_.add("there", {.kind = "host", .bytes = kBytes});
    far_.add("pad", {.kind = "shared", .bytes = kLayout.bytes()});
  }
  static bool near_notices() { return GetParam() != Notices::far; }
  static bool far_notices() { return GetParam() != Notices::near; }
  Peer connect() {
    Peer peer = take(engine_.connect("tcp:" + line_->address().to_string(), 5s));
    far_.accept();
    return peer;
  }
  /// Moves every byte both ways, started by either side, and a notification in each direction.
  void move(const Peer& peer, const RemoteRegion& there) {
    for (const Op op : {Op::write, Op::read})
      expect_moved(far_, "there", here_, op, std::span(&kAll, 1), seed_ += 2, [&] {
        return op == Op::write ? peer.write(here_.region, there, std::span(&kAll, 1))
                               : peer.read(here_.region, there, std::span(&kAll, 1));
      });
    here_.fill(++seed_);
    far_.fill("there", seed_ + 1);
    test::order_accesses(engine_);
    far_.start("there", "here", kCount);
    EXPECT_EQ(far_.ends(), std::vector<std::string>(kCount, "ok"));
    test::order_accesses(engine_);
    EXPECT_EQ(here_.difference(seed_, {{0, seed_ + 1, 0, kBytes}}), "");
    ++seed_;
    far_.notify({"from afar"});
    const auto heard = engine_.notifications(5s);
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].peer, peer.id());
    const std::string word = "from here";
    must(peer.notify(std::as_bytes(std::span(word))));
    EXPECT_EQ(far_.notifications(1), std::vector{word});
  }
  /// Returns the number of peers that are up, as the far side sees it.
  std::size_t peers_up() {
    const std::string dump = far_.dump();
    std::size_t count = 0;
    for (std::size_t at = 0; (at = dump.find("): up,", at)) != std::string::npos; ++at) ++count;
    return count;
  }
  std::vector<Transfer> start(const Peer& peer, const RemoteRegion& there) {
    std::vector<Transfer> all;
    for (std::uint64_t i = 0; i < kCount; ++i) {
      const Block part = part_of(kBytes, i, kCount);
      const TransferOptions options{.deadline = 100ms};
      all.push_back(take(i % 2 == 0
                             ? peer.write(here_.region, there, std::span(&part, 1), options)
                             : peer.read(here_.region, there, std::span(&part, 1), options)));
    }
    return all;
  }
  /// Checks that none of the transfers succeeds, because their bytes have stopped.
  void expect_to_end_badly(const std::vector<Transfer>& all) const {
    const auto limit = base::Deadline::after(base::Clock::steady(), 8s);
    for (const Transfer& each : all) {
      const Status end = each.wait(limit.left());
      ASSERT_TRUE(each.done()) << engine_.dump();
      EXPECT_TRUE(end.code() == Code::disconnected || end.code() == Code::timed_out)
          << end.to_string();
    }
  }

  Held here_;  // outlives the Engine
  Region pad_;
  FarEngine far_{{std::string(kListenAt) + "tcp:127.0.0.1:0", "LINKSPAN_TRANSFER_DEADLINE_MS=500"}};
  Engine engine_ = take(Engine::open(engine_options("near")));
  std::unique_ptr<DelayLine> line_;
  std::uint64_t seed_ = 10;
};

TEST_P(Again, TheSameEnginesMeetAtOnceAndNothingOldComesBack) {
  const Peer old = connect();
  const RemoteRegion old_there = take(old.lookup("there"));
  const Prepared prepared =
      take(old.prepare(Op::write, here_.region, old_there, std::span(&kAll, 1)));
  const Window window = take(old.window({.local = here_.region,
                                         .remote = old_there,
                                         .local_pad = pad_,
                                         .remote_pad = take(old.lookup("pad")),
                                         .layout = kLayout}));
  move(old, old_there);
  if (HasFatalFailure()) return;

  line_->freeze();
  std::vector<Transfer> lost;
  if (far_notices()) far_.start("there", "here", kCount);
  if (near_notices()) lost = start(old, old_there);
  expect_to_end_badly(lost);
  for (const std::string& end : far_.ends())
    EXPECT_TRUE(end == "disconnected" || end == "timed_out") << end;
  const auto limit = base::Deadline::after(base::Clock::steady(), 4s);
  EXPECT_TRUE(!near_notices() || is_down(old, limit)) << engine_.dump();
  while (far_notices() && peers_up() != 0 && !limit.passed()) std::this_thread::yield();
  EXPECT_EQ(old.state() == PeerState::up, !near_notices()) << engine_.dump();
  EXPECT_EQ(peers_up(), far_notices() ? 0u : 1u) << far_.dump();

  const auto begun = base::Clock::steady().now();
  const Peer peer = connect();
  EXPECT_LT(base::Clock::steady().now() - begun, 5s);  // 10 s of silence would be too late
  EXPECT_NE(peer.id(), old.id());
  EXPECT_EQ(peers_up(), far_notices() ? 1u : 2u) << far_.dump();
  far_.let_go();  // of what it had looked up by the old one
  move(peer, take(peer.lookup("there")));
  if (HasFatalFailure()) return;

  far_.fill("there", 2);
  if (!near_notices()) {
    expect_to_end_badly(start(old, old_there));
    EXPECT_TRUE(is_down(old, base::Deadline::after(base::Clock::steady(), 4s))) << engine_.dump();
  }
  const auto all = std::span(&kAll, 1);
  EXPECT_EQ(finished(old.write(here_.region, old_there, all)).code(), Code::disconnected);
  EXPECT_EQ(finished(prepared.post()).code(), Code::disconnected);
  EXPECT_EQ(finished(engine_.write_to_all(here_.region, std::span(&old_there, 1), all)[0]).code(),
            Code::disconnected);
  EXPECT_EQ(finished(peer.write(here_.region, old_there, all)).code(), Code::invalid_argument);
  EXPECT_EQ(old.lookup("there").status().code(), Code::disconnected);
  EXPECT_EQ(old.notify({}).code(), Code::disconnected);
  EXPECT_EQ(finished(old.send(1, here_.at(0), 8)).code(), Code::disconnected);
  EXPECT_EQ(window.failure().code(), Code::disconnected);
  EXPECT_EQ(window.raise(0).code(), Code::disconnected);
  EXPECT_EQ(far_.difference("there", 2), "") << "of the old connection";
  EXPECT_EQ(peer.state(), PeerState::up);
  EXPECT_EQ(engine_.deregister(here_.region, 10s).to_string(), "ok");
}

/// Over many lives, the RemoteRegions of which the user keeps. Without a shim nothing is counted.
TEST(PeerCloseAgain, GivesBackWhatMapsMemoryOfGpus) {
  if (const Status status = need_gpus(2); !status.ok()) GTEST_SKIP() << status.to_string();
  Held here;  // outlives the Engine
  FarEngine far;
  Engine engine = take(Engine::open(engine_options("near")));
  here = Held::make(engine, {.kind = "device0", .bytes = kBytes});
  far.add("there", {.kind = "device1", .bytes = kBytes});
  std::vector<RemoteRegion> kept;
  const auto live = [&] {
    const Peer peer = take(engine.connect(far.address()));
    kept.push_back(take(peer.lookup("there")));
    EXPECT_EQ(finished(peer.write(here.region, kept.back(), std::span(&kAll, 1))).to_string(),
              "ok");
    EXPECT_EQ(peer.close(10s).to_string(), "ok");
  };
  live();
  const Usage before = Usage::lowest(1s, {});
  for (int i = 0; i < 5; ++i) live();
  const Usage after = Usage::lowest(10s, before);
  EXPECT_EQ(after.fds, before.fds);
  for (const auto& [name, count] : after.balance)
    EXPECT_TRUE(name != "IPC handles opened" || count == 0) << count;
  EXPECT_EQ(far.deregister("there", 2s).to_string(), "ok");
}

INSTANTIATE_TEST_SUITE_P(Noticed, Again,
                         ::testing::Values(Notices::near, Notices::far, Notices::both),
                         [](const auto& param) {
                           return std::string(kNames[static_cast<std::size_t>(param.param)]);
                         });

}  // namespace again_test
}  // namespace linkspan::test
