// Tests peers that end and return under the same address, and peers whose children live on. Objects
// of the old life are refused and never reach the new one's memory. Memory that the old life could
// still write stays in use until all its processes have ended.
#include <poll.h>
#include <signal.h>

#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/sanitizer_order.hpp"

namespace linkspan::test {
namespace restart_test {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr Block kAll{0, 0, kMiB};

/// The parameter is the first address; later lives use the port that the first one was given.
class Restart : public ::testing::TestWithParam<const char*> {};

TEST_P(Restart, AtTheSameAddressNothingOldReachesTheNewOne) {
  constexpr int kLives = 3;
  std::vector<std::string> at{kListenAt + std::string(GetParam())};
  Held here;  // outlives the Engine
  Engine engine = take(Engine::open(engine_options("near")));
  here = Held::make(engine, {.kind = "host"});
  here.fill(1);
  must(engine.publish("near", here.region));
  std::vector<Peer> peers;
  std::vector<RemoteRegion> remotes;
  std::vector<Prepared> prepared;
  std::vector<Transfer> transfers;
  std::unique_ptr<FarEngine> far;
  for (int life = 0; life < kLives; ++life) {
    far.reset();  // the killed one's: it has ended
    far = std::make_unique<FarEngine>(at);
    at = {kListenAt + far->address()};
    far->add("kv", {.kind = "shared"});
    far->add("private", {.kind = "host"});
    far->fill("kv", 2);
    far->fill("private", 3);
    const Peer peer = take(engine.connect(far->address()));
    for (const char* name : {"kv", "private"}) {
      for (const RemoteRegion& old : remotes) {
        if (old.name() != name) continue;
        const auto by_new = peer.write(here.region, old, std::span(&kAll, 1));
        EXPECT_EQ(finished(by_new).code(), Code::invalid_argument) << finished(by_new).to_string();
      }
    }
    for (std::size_t i = 0; i < peers.size(); ++i) {
      const Peer& old = peers[i];
      EXPECT_NE(old.id(), peer.id());
      EXPECT_NE(old.state(), PeerState::up);
      EXPECT_EQ(old.lookup("kv").status().code(), Code::disconnected);
      for (const std::size_t of : {2 * i, 2 * i + 1}) {
        const auto by_old = old.write(here.region, remotes[of], std::span(&kAll, 1));
        EXPECT_EQ(finished(by_old).code(), Code::disconnected) << finished(by_old).to_string();
      }
      EXPECT_EQ(finished(old.send(1, here.at(0), 8)).code(), Code::disconnected);
      EXPECT_EQ(old.notify({}).code(), Code::disconnected);
    }
    for (const Prepared& old : prepared) EXPECT_EQ(finished(old.post()).code(), Code::disconnected);
    for (const Transfer& old : transfers) EXPECT_TRUE(old.done());
    EXPECT_EQ(far->difference("kv", 2), "") << "of an earlier life";
    EXPECT_EQ(far->difference("private", 3), "") << "of an earlier life";

    peers.push_back(peer);
    for (const char* name : {"kv", "private"}) {
      remotes.push_back(take(peer.lookup(name)));
      prepared.push_back(
          take(peer.prepare(Op::write, here.region, remotes.back(), std::span(&kAll, 1))));
      transfers.push_back(take(peer.write(here.region, remotes.back(), std::span(&kAll, 1))));
      EXPECT_EQ(transfers.back().wait(10s).to_string(), "ok");
    }
    EXPECT_EQ(far->difference("kv", 2, {{0, 1, 0, kMiB}}), "");
    EXPECT_EQ(far->difference("private", 3, {{0, 1, 0, kMiB}}), "");
    // Each new life finds what this side has published.
    far->accept();
    far->fill("private", 4);
    test::order_accesses(engine);
    far->start("private", "near", 1);
    EXPECT_EQ(far->ends(), std::vector<std::string>{"ok"});
    test::order_accesses(engine);
    EXPECT_EQ(here.difference(1, {{0, 4, 0, kMiB}}), "");
    here.fill(1);
    for (int i = 0; i < 32; ++i)  // in flight when it dies
      for (std::size_t last : {remotes.size() - 2, remotes.size() - 1}) {
        const Block part = part_of(kMiB, static_cast<std::uint64_t>(i), 32);
        auto moved = peer.write(here.region, remotes[last], std::span(&part, 1));
        if (moved.ok()) transfers.push_back(*moved);
      }
    far->process().kill();
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    for (const Transfer& each : transfers) {
      const Status end = each.wait(limit.left());
      EXPECT_TRUE(each.done() && (end.ok() || end.code() == Code::disconnected)) << end.to_string();
    }
    ASSERT_TRUE(is_down(peer, limit));
  }
  remotes.clear();
  prepared.clear();
  EXPECT_EQ(engine.deregister(here.region, 10s).to_string(), "ok");
}

TEST_P(Restart, ConnectingGoesOnUntilTheNewOneListens) {
  Engine engine = take(Engine::open(engine_options("near")));
  std::string at;
  {
    FarEngine first({kListenAt + std::string(GetParam())});
    at = first.address();
    first.process().kill();  // it leaves its socket
  }
  std::optional<Result<Peer>> met;
  std::jthread connecting([&] { met = engine.connect(at, 10s); });
  FarEngine second({kListenAt + at});
  connecting.join();
  EXPECT_TRUE(met->ok()) << met->status().to_string();
}

INSTANTIATE_TEST_SUITE_P(By, Restart, ::testing::Values("restarted", "tcp:127.0.0.1:0"),
                         [](const auto& param) {
                           return std::string(param.index == 0 ? "unix" : "tcp");
                         });

/// The child of a dead peer holds its socket and what it had opened: neither the process nor its
/// end-of-file alone says that nothing lands any more.
TEST(Orphan, AChildOfADeadPeerKeepsItsMemoryLent) {
  Held here, beside;  // outlive the Engine
  Pair pair;
  FarEngine third;
  here = Held::make(pair.engine, {.kind = "shared"});
  beside = Held::make(pair.engine, {.kind = "shared"});
  pair.far.add("asked", {.kind = "host", .peers = {true, true, true}});
  third.add("there", {.kind = "shared"});
  const RemoteRegion asked = pair.remote("asked");
  here.fill(1);
  beside.fill(3);
  third.fill("there", 4);
  const pid_t child = pair.far.fork();
  const std::shared_ptr<void> ends(nullptr, [&](void*) { ::kill(child, SIGKILL); });
  pair.far.process().signal(SIGSTOP);
  const Transfer lent = take(pair.peer.write(here.region, asked, std::span(&kAll, 1)));
  pair.far.process().kill();

  EXPECT_EQ(lent.wait(300ms).code(), Code::pending);
  EXPECT_FALSE(lent.done()) << "the child can still touch the memory";
  EXPECT_NE(pair.peer.state(), PeerState::gone);
  EXPECT_EQ(lent.cancel().code(), Code::pending);
  EXPECT_EQ(pair.engine.deregister(here.region, 20ms).code(), Code::busy);
  // Calls that need the dead peer end by their deadline, and others do not wait.
  const Status late = pair.peer.lookup("asked", 100ms).status();
  EXPECT_TRUE(late.code() == Code::timed_out || late.code() == Code::disconnected)
      << late.to_string();
  {
    const Peer other = take(pair.engine.connect(third.address()));
    const RemoteRegion there = take(other.lookup("there"));
    EXPECT_EQ(finished(other.write(beside.region, there, std::span(&kAll, 1))).to_string(), "ok");
    EXPECT_EQ(third.difference("there", 4, {{0, 3, 0, kMiB}}), "");
  }

  ::kill(child, SIGKILL);
  const Status end = lent.wait(10s);
  ASSERT_TRUE(lent.done()) << pair.engine.dump();
  EXPECT_TRUE(end.code() == Code::disconnected || end.code() == Code::canceled) << end.to_string();
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  while (pair.peer.state() != PeerState::gone && !limit.passed()) std::this_thread::yield();
  EXPECT_EQ(pair.peer.state(), PeerState::gone);
  here.fill(5);
  EXPECT_EQ(pair.engine.deregister(here.region, 10s).to_string(), "ok");
  EXPECT_EQ(here.difference(5), "");
}

}  // namespace restart_test
}  // namespace linkspan::test
