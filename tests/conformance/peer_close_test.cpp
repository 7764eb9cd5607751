// Tests Peer::close(): it ends one peer and nothing else. Its transfers end, no byte of either side
// lands from then on, the peer is informed, and the same two Engines may connect again.
#include <signal.h>

#include <atomic>
#include <thread>

#include "linkspan/window.hpp"
#include "tests/conformance/engine_world.hpp"
#include "tests/conformance/wire_pair.hpp"
#include "tests/support/raw_peer.hpp"
#include "tests/support/sanitizer_order.hpp"

namespace linkspan::test {
namespace peer_close_test {

constexpr std::uint64_t kMiB = 1u << 20, kBytes = 12 * kMiB, kParts = 48;
constexpr Block kAll{0, 0, kBytes};
constexpr int kMapped = -1;  // no wire

struct Reach {
  const char* name;
  int wire;
  Kind near, far;
  bool exclusive = false;
};
void PrintTo(const Reach& reach, std::ostream* out) { *out << reach.name; }

constexpr Reach kReaches[] = {
    {"cpu_threads", kMapped, kKinds[3], kKinds[4]},
    {"cross_process", kMapped, kKinds[3], kKinds[3]},
    {"by_the_peer", kMapped, kKinds[4], kKinds[3], true},
    {"bounce", kMapped, kKinds[3], kKinds[3], true},
    {"cuda_ipc", kMapped, kKinds[0], kKinds[1]},
    {"cuda_ipc_by_the_peer", kMapped, kKinds[0], kKinds[3]},
    {"tcp_host", kTcp, kKinds[3], kKinds[3]},
    {"tcp_device", kTcp, kKinds[0], kKinds[0]},
    {"nccl_net_host", 12, kKinds[3], kKinds[4]},
    {"nccl_net_device", 7, kKinds[0], kKinds[0]},
    {"nccl_net_staged", kStaged, kKinds[0], kKinds[0]},
};

/// Two far Engines that one here has met.
class PeerClose : public ::testing::TestWithParam<Reach> {
 protected:
  static constexpr const char* kRequireNothing = "";

  void SetUp() override {
    if (const Status status = kinds_here({GetParam().near, GetParam().far}); !status.ok())
      GTEST_SKIP() << status.to_string();
    engine_.emplace(take(Engine::open(mapped() ? engine_options("near") : wire_options(wire()))));
    here_ = Held::make(*engine_, {.kind = GetParam().near.name, .bytes = kBytes});
    beside_ = Held::make(*engine_, {.kind = GetParam().near.name, .bytes = kBytes});
    must(engine_->publish("here", here_.region));
    far_.emplace(environment());
    other_.emplace(environment());
    for (FarEngine* far : {&*far_, &*other_}) {
      far->add("there", {.kind = GetParam().far.name,
                         .bytes = kBytes,
                         .peers = {true, true, GetParam().exclusive}});
      far->add("theirs", {.kind = GetParam().far.name, .bytes = kBytes});
    }
    meet();
    peer_beside_ = take(engine_->connect(other_->address()));
    elsewhere_ = take(peer_beside_.lookup("there"));
  }
  static bool mapped() { return GetParam().wire == kMapped; }
  static int wire() { return GetParam().wire; }
  /// Returns false for a peer of this host, which may have mapped something.
  static bool remote() { return wire() == kTcp; }
  static std::vector<std::string> environment() {
    return mapped() ? std::vector<std::string>() : with_wire(wire());
  }
  static TransferOptions way() { return mapped() ? TransferOptions{} : by_wire(wire()); }
  static std::string required() { return way().require; }
  void meet() {
    peer_ = take(engine_->connect(far_->address()));
    far_->accept();
    there_ = take(peer_.lookup("there"));
  }
  /// Writes and reads by turns, each of its own part.
  std::vector<Transfer> start(const Duration deadline = 0ns) {
    std::vector<Transfer> all;
    TransferOptions options = way();
    options.deadline = deadline;
    for (std::uint64_t i = 0; i < kParts; ++i)
      all.push_back(take(move(peer_, i % 2 == 0 ? Op::write : Op::read, here_.region, there_,
                              part_of(kBytes, i, kParts), options)));
    return all;
  }
  /// Checks that all are quiet. A wire that had to be reset reports that.
  static void expect_quiet(const std::vector<Transfer>& all) {
    for (const Transfer& each : all) {
      EXPECT_TRUE(each.done());
      const Status end = each.status();
      EXPECT_TRUE(end.ok() || end.code() == Code::canceled ||
                  (remote() && end.code() == Code::disconnected))
          << end.to_string();
    }
  }
  /// Moves every byte both ways.
  void expect_moves(FarEngine& far, const Peer& peer, const RemoteRegion& there, Held& here) {
    for (const Op op : {Op::write, Op::read})
      expect_moved(far, "there", here, op, std::span(&kAll, 1), seed_ += 2,
                   [&] { return move(peer, op, here.region, there, kAll, way()); });
  }
  void expect_refused() {
    EXPECT_EQ(peer_.state(), PeerState::gone);
    for (const Op op : {Op::write, Op::read})
      EXPECT_EQ(move(peer_, op, here_.region, there_, kAll, way()).status().code(),
                Code::disconnected);
    EXPECT_EQ(peer_.send(1, here_.at(0), 8).status().code(), Code::disconnected);
    EXPECT_EQ(peer_.recv(1, here_.at(0), 8).status().code(), Code::disconnected);
    EXPECT_EQ(peer_.notify({}).code(), Code::disconnected);
    EXPECT_EQ(peer_.lookup("there").status().code(), Code::disconnected);
    EXPECT_EQ(peer_.lookup_set("there").status().code(), Code::disconnected);
    EXPECT_EQ(peer_.await_version("there", 0, 10s).status().code(), Code::disconnected);
    EXPECT_EQ(peer_.explain(Op::write, here_.region, there_, 1, 8).status().code(),
              Code::disconnected);
  }

  Held here_, beside_;  // outlive the Engine
  std::optional<Engine> engine_;
  std::optional<FarEngine> far_, other_;
  Peer peer_, peer_beside_;
  RemoteRegion there_, elsewhere_;
  std::uint64_t seed_ = 100;
};

TEST_P(PeerClose, EndsItsTransfersAndNoOthers) {
  for (int round = 0; round < 3; ++round) {
    const std::vector<Transfer> all = start();
    const Transfer other =
        take(move(peer_beside_, Op::write, beside_.region, elsewhere_, kAll, way()));
    ASSERT_EQ(peer_.close(10s).to_string(), "ok") << engine_->dump();
    expect_quiet(all);
    expect_refused();
    EXPECT_EQ(peer_.close(10s).to_string(), "ok");
    EXPECT_EQ(other.wait(20s).to_string(), "ok") << engine_->dump() << other_->dump();
    here_.fill(7);  // both memories are their users'
    far_->fill("there", 8);
    expect_moves(*other_, peer_beside_, elsewhere_, beside_);
    EXPECT_EQ(peer_beside_.state(), PeerState::up);
    EXPECT_EQ(here_.difference(7), "");
    EXPECT_EQ(far_->difference("there", 8), "");
    meet();
    expect_moves(*far_, peer_, there_, here_);
    if (HasFatalFailure()) return;
  }
}

TEST_P(PeerClose, EndsWhatThePeerDoesAndTellsIt) {
  far_->fill("theirs", 2);
  far_->start("theirs", "here", 4, required());
  EXPECT_EQ(far_->ends(), std::vector<std::string>(4, "ok"));
  far_->churn(Op::write, "theirs", "here", kAll, required());
  ASSERT_EQ(peer_.close(10s).to_string(), "ok") << engine_->dump();
  here_.fill(7);
  const std::string why = far_->rest();
  EXPECT_NE(why.find("disconnected"), std::string::npos) << why;
  EXPECT_EQ(here_.difference(7), "") << "a byte landed after close()";
  EXPECT_EQ(far_->dump().find("near"), std::string::npos) << far_->dump();
  EXPECT_EQ(engine_->deregister(here_.region, 2s).to_string(), "ok");
  here_.region = take(engine_->register_memory(here_.region.data(), kBytes));
  must(engine_->publish("here", here_.region));
  far_->let_go();
  meet();
  far_->fill("theirs", 3);
  far_->start("theirs", "here", 4, required());
  EXPECT_EQ(far_->ends(), std::vector<std::string>(4, "ok"));
  test::order_accesses(*engine_);
  EXPECT_EQ(here_.difference(7, {{0, 3, 0, kBytes}}), "");
}

/// Both sides close during transfers of their own, each in memories of its own.
TEST_P(PeerClose, EndsWellWhenBothSidesCall) {
  must(engine_->publish("beside", beside_.region));
  far_->churn(Op::write, "theirs", "beside", kAll, required());
  const std::vector<Transfer> all = start();
  std::jthread there([&] { EXPECT_EQ(far_->close_peer(10s).to_string(), "ok"); });
  EXPECT_EQ(peer_.close(10s).to_string(), "ok") << engine_->dump();
  there.join();
  for (const Transfer& each : all) EXPECT_TRUE(each.done());
  EXPECT_NE(far_->rest(), "");
  expect_refused();
  far_->let_go();
  meet();
  expect_moves(*far_, peer_, there_, here_);
}

TEST_P(PeerClose, IsHeardByEveryThreadThatCallsOrWaits) {
  const RemoteRegion theirs = take(peer_.lookup("theirs"));  // which nothing else writes to
  const std::vector<Transfer> all = start();
  std::atomic<int> answered{0};
  {
    std::vector<std::jthread> threads;
    threads.emplace_back([&] {
      const Status asked = peer_.await_version("never", 0, 60s).status();
      EXPECT_TRUE(asked.code() == Code::canceled || asked.code() == Code::disconnected)
          << asked.to_string();
      ++answered;
    });
    threads.emplace_back([&] {  // imports, one after the other
      Status asked;
      while (asked.ok()) asked = peer_.lookup("there").status();
      EXPECT_TRUE(asked.code() == Code::canceled || asked.code() == Code::disconnected)
          << asked.to_string();
      ++answered;
    });
    threads.emplace_back([&] {  // posts
      Status posted;
      while (posted.ok() || posted.code() == Code::no_resource) {
        const auto moved = move(peer_, Op::write, here_.region, theirs, {0, 0, 8}, way());
        posted = moved.status();
        if (moved.ok()) posted = moved->wait(20s);
      }
      EXPECT_TRUE(posted.code() == Code::canceled || posted.code() == Code::disconnected)
          << posted.to_string();
      ++answered;
    });
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([&] {
        EXPECT_EQ(peer_.close(20s).to_string(), "ok") << engine_->dump();
        ++answered;
      });
  }
  EXPECT_EQ(answered, 6);
  expect_quiet(all);
  expect_refused();
}

TEST_P(PeerClose, WaitsForAStoppedPeerNoLongerThanItSays) {
  far_->process().signal(SIGSTOP);
  const std::vector<Transfer> all = start(20s);
  const auto begun = base::Clock::steady().now();
  const Status end = peer_.close(2s);
  EXPECT_LT(base::Clock::steady().now() - begun, 12s);
  if (remote())
    EXPECT_EQ(end.to_string(), "ok") << "its wires can be reset";
  else
    EXPECT_EQ(end.code(), Code::pending) << end.to_string();
  EXPECT_NE(peer_.state(), PeerState::up);
  EXPECT_EQ(move(peer_, Op::write, here_.region, there_, kAll, way()).status().code(),
            Code::disconnected);
  expect_moves(*other_, peer_beside_, elsewhere_, beside_);
  if (end.ok()) {
    expect_quiet(all);
    here_.fill(7);
  }
  // A wire of this host gives a peer up 10 s after a cancel; then its death alone frees the memory.
  const bool slow = !end.ok() && base::Clock::steady().now() - begun > 8s;
  if (slow)
    far_->process().kill();
  else
    far_->process().signal(SIGCONT);
  EXPECT_EQ(peer_.close(20s).to_string(), "ok") << engine_->dump();
  if (slow) return;
  expect_quiet(all);
  if (!end.ok()) here_.fill(7);
  meet();
  EXPECT_EQ(here_.difference(7), "");
  expect_moves(*far_, peer_, there_, here_);
}

TEST_P(PeerClose, EndsMessagesOfBothSides) {
  far_->add_loose("loose", {.kind = GetParam().far.name, .bytes = kBytes});
  const Held loose = Held::loose(*engine_, {.kind = GetParam().near.name, .bytes = kBytes});
  const Transfer sends = take(peer_.send(1, loose.at(0), kMiB));
  const Transfer receives = take(peer_.recv(2, loose.at(kMiB), kMiB));
  const std::size_t send =
      take(far_->post({.sends = true, .name = "loose", .bytes = 64, .tag = 3}));
  const std::size_t receive = take(far_->post({.name = "loose", .bytes = 64, .tag = 4}));
  ASSERT_EQ(peer_.close(10s).to_string(), "ok") << engine_->dump();
  expect_quiet({sends, receives});
  for (const std::size_t number : {send, receive}) {
    const FarEnd end = far_->end(number);
    EXPECT_TRUE(end.code == "disconnected" || end.code == "canceled") << end.code << end.what;
  }
}

/// The user keeps its RemoteRegion.
TEST_P(PeerClose, LetsTheOwnerTakeItsRegionBack) {
  expect_moves(*far_, peer_, there_, here_);
  if (mapped() && !GetParam().exclusive) {
    EXPECT_EQ(far_->deregister("there", 20ms).code(), Code::busy);
  }
  ASSERT_EQ(peer_.close(10s).to_string(), "ok") << engine_->dump();
  EXPECT_EQ(far_->deregister("there", 2s).to_string(), "ok");
}

INSTANTIATE_TEST_SUITE_P(Every, PeerClose, ::testing::ValuesIn(kReaches),
                         [](const auto& param) { return std::string(param.param.name); });

// ---- peers that keep no rules ------------------------------------------------------------------

class PeerCloseOfRaw : public ::testing::TestWithParam<const char*> {
 protected:
  PeerCloseOfRaw() {
    must(engine_.listen(GetParam()));
    raw_ = connect_raw(engine_.address());
    greet_raw(raw_);
    peer_ = take(engine_.accept(5s));
  }
  Engine engine_ = take(Engine::open(engine_options("near")));
  base::FdChannel raw_{base::Fd()};
  Peer peer_;
};

TEST_P(PeerCloseOfRaw, SaysGoodbyeAndHasABoundWhateverItAnswers) {
  const bool remote = std::string_view(GetParam()).starts_with("tcp");
  const Status end = peer_.close(200ms);
  EXPECT_EQ(end.code(), remote ? Code::ok : Code::pending) << end.to_string();
  const auto said = next_raw(raw_);
  ASSERT_TRUE(said.has_value());
  EXPECT_EQ(static_cast<control::FrameOp>(said->header.op), control::FrameOp::goodbye);
  send_raw(raw_, control::FrameOp::import, control::encode_import("nothing"));  // is not read
  if (!remote) {
    EXPECT_EQ(peer_.state(), PeerState::lost);
    EXPECT_EQ(peer_.close(20ms).code(), Code::pending);
    send_raw(raw_, control::FrameOp::goodbye, {});
    EXPECT_EQ(peer_.close(10s).to_string(), "ok");
  }
  EXPECT_EQ(peer_.state(), PeerState::gone);
  base::FdChannel again = connect_raw(engine_.address());
  greet_raw(again);
  EXPECT_EQ(take(engine_.accept(5s)).state(), PeerState::up);
}

INSTANTIATE_TEST_SUITE_P(By, PeerCloseOfRaw, ::testing::Values("", "tcp:127.0.0.1:0"),
                         [](const auto& param) {
                           return std::string_view(param.param).empty() ? "unix" : "tcp";
                         });

/// A peer whose region the user here holds, and which wants it back, waits for no close().
TEST(PeerClosed, OrTheEngineItHoldsNoRegionBack) {
  for (const bool one_peer : {true, false}) {
    Pair pair;
    pair.far.add("there", {.kind = "shared"});
    const RemoteRegion there = pair.remote("there");
    EXPECT_EQ(pair.far.deregister("there", 20ms).code(), Code::busy);
    const Status end = one_peer ? pair.peer.close(10s) : pair.engine.close(10s);
    EXPECT_EQ(end.to_string(), "ok") << pair.engine.dump();
    EXPECT_EQ(pair.far.deregister("there", 5s).to_string(), "ok");
  }
}

TEST(PeerClosed, EndsItsWindows) {
  constexpr device::PadLayout kLayout{.signals = 8, .mailboxes = 1, .mailbox_bytes = 1024};
  Held here;  // outlives the Engine
  Pair pair;
  here = Held::make(pair.engine, {.kind = "host"});
  const Region pad = take(pair.engine.allocate_shared(kLayout.bytes()));
  pair.far.add("there", {.kind = "shared"});
  pair.far.add("pad", {.kind = "shared", .bytes = kLayout.bytes()});
  const RemoteRegion there = pair.remote("there"), their_pad = pair.remote("pad");
  const WindowOptions options{.local = here.region,
                              .remote = there,
                              .local_pad = pad,
                              .remote_pad = their_pad,
                              .layout = kLayout};
  const Window window = take(pair.peer.window(options));
  std::jthread waiting([&] {
    const Status end = window.wait_signal(1, 1, 60s).status();
    EXPECT_EQ(end.code(), Code::canceled) << end.to_string();
  });
  EXPECT_EQ(pair.peer.close(10s).to_string(), "ok");
  waiting.join();
  EXPECT_EQ(window.failure().code(), Code::canceled);
  EXPECT_EQ(window.raise(0).code(), Code::canceled);
  EXPECT_EQ(pair.peer.window(options).status().code(), Code::disconnected);
}

TEST(PeerClosed, IsNoPeerThatTheEngineWaitsFor) {
  Held here;  // outlives the Engine
  Pair pair;
  pair.far.accept();
  here = Held::make(pair.engine, {.kind = "host"});
  must(pair.engine.publish("here", here.region));
  pair.far.process().signal(SIGSTOP);
  EXPECT_EQ(pair.peer.close(20ms).code(), Code::pending);
  EXPECT_EQ(pair.engine.close(10s).to_string(), "ok") << "it had no key";
  EXPECT_EQ(pair.peer.state(), PeerState::gone);
  const Status end = pair.peer.close(10s);
  EXPECT_TRUE(end.ok() || end.code() == Code::canceled) << end.to_string();
  pair.far.process().signal(SIGCONT);
}

}  // namespace peer_close_test
}  // namespace linkspan::test
