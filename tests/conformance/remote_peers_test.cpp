// Tests peers over TCP on this host: they connect, notify, end and get reasons as others do, and
// nothing that belongs to this host alone is sent to them.
#include <signal.h>
#include <stdlib.h>

#include <thread>

#include "control/exchange.hpp"
#include "memory/descriptor.hpp"
#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/raw_peer.hpp"

namespace linkspan::test {
namespace remote_peers_test {

using control::FrameOp;

constexpr const char* kAnyPort = "tcp:127.0.0.1:0";
constexpr std::uint64_t kBytes = 64u << 10;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}
std::string text_of(const Notification& each) {
  return {reinterpret_cast<const char*>(each.bytes.data()), each.bytes.size()};
}
/// Returns numbered messages of many lengths, some of the maximum.
std::vector<std::string> messages() {
  std::vector<std::string> all;
  for (int i = 0; i < 500; ++i) {
    std::string each = std::to_string(i) + " ";
    each.resize(i % 50 == 7 ? 65536 : each.size() + static_cast<std::size_t>(i), 'x');
    all.push_back(std::move(each));
  }
  return all;
}
void expect_says(const Status& status, std::initializer_list<const char*> words) {
  for (const char* word : words)
    EXPECT_NE(status.what().find(word), std::string::npos) << status.to_string();
}

class RemotePeers : public ::testing::Test {
 protected:
  RemotePeers() { must(pair_.engine.listen(kAnyPort)); }
  /// Returns `count` received messages as texts, or what came within 10 s.
  std::vector<std::string> heard(std::size_t count) {
    std::vector<std::string> all;
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    while (all.size() < count && !limit.passed())
      for (const Notification& each : pair_.engine.notifications(limit.left()))
        all.push_back(text_of(each));
    return all;
  }
  void notify(const Peer& peer, const std::string& text) {
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    Status sent = peer.notify(bytes_of(text));
    while (sent.code() == Code::no_resource && !limit.passed()) sent = peer.notify(bytes_of(text));
    ASSERT_EQ(sent.to_string(), "ok");
  }

  Held here_;  // outlives the Engine
  Pair pair_{{std::string(kListenAt) + kAnyPort}};
};

/// Bytes go by no wire.
class RemotePeersWithoutWire : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("LINKSPAN_TCP_STREAMS", "0", 1); }  // the far end's too
  static void TearDownTestSuite() { ::unsetenv("LINKSPAN_TCP_STREAMS"); }
  Pair pair_{{std::string(kListenAt) + kAnyPort}};
};

TEST_F(RemotePeers, AreMetBothWaysAndAreOfNoProcess) {
  EXPECT_EQ(pair_.far.address().find("tcp:127.0.0.1:"), 0u) << pair_.far.address();
  EXPECT_EQ(pair_.peer.name(), "far");
  EXPECT_EQ(pair_.peer.state(), PeerState::up);
  FarEngine comes;
  comes.connect(pair_.engine.address());
  const Peer peer = take(pair_.engine.accept(5s));
  EXPECT_EQ(peer.state(), PeerState::up);
  const std::string dump = pair_.engine.dump();
  for (const std::string& at : {pair_.far.address().substr(4), std::string("127.0.0.1:")})
    EXPECT_NE(dump.find("(at " + at), std::string::npos) << dump;
  EXPECT_NE(dump.find(", by tcp;"), std::string::npos) << dump;
}

TEST_F(RemotePeers, NotifyBothWaysInOrder) {
  const std::vector<std::string> all = messages();
  pair_.far.accept();
  std::jthread sending([&] { pair_.far.notify(all); });
  for (const std::string& each : all) notify(pair_.peer, each);
  EXPECT_EQ(heard(all.size()), all);
  sending.join();
  EXPECT_EQ(pair_.far.notifications(all.size()), all);
}

TEST_F(RemotePeersWithoutWire, AreToldThatAMappingStaysOnItsHost) {
  pair_.far.add("kv", {.kind = "shared", .bytes = kBytes});
  const Status one = pair_.peer.lookup("kv").status(), set = pair_.peer.lookup_set("kv").status();
  for (const Status& status : {one, set}) {
    EXPECT_EQ(status.code(), Code::unreachable) << status.to_string();
    expect_says(status, {"\"kv\"", "local", "unix:"});
  }
  EXPECT_EQ(pair_.peer.lookup("nothing").status().code(), Code::not_found);
  EXPECT_EQ(take(pair_.peer.await_version("kv", 0, 5s)), 1u) << "it is there";
  EXPECT_EQ(pair_.peer.state(), PeerState::up);
}

TEST_F(RemotePeersWithoutWire, HearOnBothSidesThatNoWayLeadsToAMessage) {
  pair_.far.accept();
  pair_.far.add_loose("theirs", {.kind = "shared", .bytes = kBytes});
  Held ours = Held::loose(pair_.engine, {.kind = "shared", .bytes = kBytes});
  ours.fill(3);
  for (const bool far_sends : {true, false}) {
    const std::size_t there = take(
        pair_.far.post({.sends = far_sends, .name = "theirs", .bytes = kBytes, .deadline = 5s}));
    const Status here = finished(far_sends ? pair_.peer.recv(1, ours.at(0), kBytes)
                                           : pair_.peer.send(1, ours.at(0), kBytes));
    EXPECT_EQ(here.code(), Code::unreachable) << here.to_string();
    expect_says(here, {"local", "unix:"});
    EXPECT_EQ(pair_.far.end(there).code, "unreachable");
  }
  EXPECT_EQ(ours.difference(3), "");
}

/// The offer would carry its key.
TEST_F(RemotePeersWithoutWire, CannotBeSentPrivateMemoryAndHearNothingOfIt) {
  std::vector<std::byte> memory(kBytes);
  const Status refused = pair_.peer.send(1, memory.data(), kBytes).status();
  EXPECT_EQ(refused.code(), Code::unreachable) << refused.to_string();
  expect_says(refused, {"the message's memory", "local", "unix:"});
  EXPECT_EQ(pair_.engine.dump().find("transfer "), std::string::npos) << pair_.engine.dump();
}

TEST_F(RemotePeers, MatchMessagesWithoutBytes) {
  pair_.far.accept();
  pair_.far.add_loose("none", {.kind = "host", .bytes = 1});
  const std::size_t there = take(pair_.far.post({.sends = true, .name = "none"}));
  EXPECT_EQ(finished(pair_.peer.recv(1, nullptr, 0)).to_string(), "ok");
  EXPECT_EQ(pair_.far.end(there).code, "ok");
}

TEST_F(RemotePeers, ThatAreKilledAreGoneWithinASecond) {
  std::jthread asking([peer = pair_.peer] {
    const Status asked = peer.await_version("never", 0, 10s).status();
    EXPECT_EQ(asked.code(), Code::disconnected) << asked.to_string();
  });
  pair_.far.accept();
  std::vector<std::byte> room(64);
  const auto receive = pair_.peer.recv(1, room.data(), room.size());
  pair_.far.process().kill();
  const auto limit = base::Deadline::after(base::Clock::steady(), 1s);
  while (pair_.peer.state() != PeerState::gone && !limit.passed()) std::this_thread::yield();
  EXPECT_EQ(pair_.peer.state(), PeerState::gone);
  EXPECT_EQ(finished(receive).code(), Code::disconnected) << finished(receive).to_string();
  EXPECT_EQ(pair_.peer.notify(bytes_of("late")).code(), Code::disconnected);
  EXPECT_EQ(pair_.peer.lookup("kv").status().code(), Code::disconnected);
}

TEST_F(RemotePeers, ThatAreStoppedAreNotLost) {
  pair_.far.process().signal(SIGSTOP);
  EXPECT_EQ(pair_.peer.lookup("kv", 200ms).status().code(), Code::timed_out);
  EXPECT_EQ(pair_.peer.state(), PeerState::up);
  pair_.far.process().signal(SIGCONT);
  EXPECT_EQ(pair_.peer.lookup("kv").status().code(), Code::not_found);
}

TEST_F(RemotePeers, HearGoodbyeAndAllThatWasSaidBefore) {
  pair_.far.accept();
  base::FdChannel raw = connect_raw(pair_.engine.address());
  greet_raw(raw);
  take(pair_.engine.accept(5s));
  notify(pair_.peer, "last");
  EXPECT_EQ(pair_.engine.close(5s).to_string(), "ok");
  const auto said = next_raw(raw);
  ASSERT_TRUE(said.has_value());
  EXPECT_EQ(static_cast<FrameOp>(said->header.op), FrameOp::goodbye);
  EXPECT_EQ(pair_.far.notifications(1), std::vector<std::string>{"last"});
}

TEST_F(RemotePeers, OfThisProcessAreRemoteAsWell) {
  Engine other = take(Engine::open(engine_options("other")));
  here_ = Held::make(pair_.engine, {.kind = "shared", .bytes = kBytes});
  must(pair_.engine.publish("kv", here_.region));
  const Peer by_tcp = take(other.connect(pair_.engine.address()));
  const Held to = Held::make(other, {.kind = "shared", .bytes = kBytes});
  const auto path = [&to](const Peer& peer) {
    return take(peer.explain(Op::read, to.region, take(peer.lookup("kv")), 1, kBytes)).path;
  };
  EXPECT_EQ(path(by_tcp), "tcp");
  must(pair_.engine.listen());
  EXPECT_NE(path(take(other.connect(pair_.engine.address()))), "tcp");
}

// ---- one that does not keep the rules ----------------------------------------------------------

class HostileRemotePeers : public ::testing::Test {
 protected:
  HostileRemotePeers() {
    must(engine_.listen(kAnyPort));
    raw_ = connect_raw(engine_.address());
  }
  void greet(const control::Hello& hello) {
    send_raw(raw_, FrameOp::hello, encode(hello));
    send_raw(raw_, FrameOp::ready, {});
    peer_ = take(engine_.accept(5s));
  }
  void greet() {
    greet_raw(raw_);
    peer_ = take(engine_.accept(5s));
  }
  /// Returns a descriptor that a Unix peer could open with fds; here it is bytes alone.
  static std::vector<std::byte> descriptor(std::uint32_t fds) {
    const std::vector<std::byte> key(200, std::byte{1});
    return memory::encode({.name = "kv",
                           .id = {.incarnation = kRawIncarnation, .serial = 3},
                           .kind = MemoryKind::device,
                           .peers = {.read = true, .write = true},
                           .bytes = kBytes,
                           .keys = {{.transport = "local", .bytes = key, .fd_count = fds}}});
  }

  /// Checks that the next answer has keys for wires alone.
  void expect_only_wires() {
    const auto said = next_raw(raw_);
    ASSERT_TRUE(said.has_value());
    EXPECT_TRUE(said->fds.empty());
    expect_only_wires(take(control::decode_imported(said->payload)));
  }
  static void expect_only_wires(std::span<const std::byte> bytes) {
    const auto descriptor = take(memory::decode(bytes));
    ASSERT_EQ(descriptor.keys.size(), 1u);
    EXPECT_EQ(descriptor.keys[0].transport, "tcp");
    EXPECT_EQ(descriptor.keys[0].fd_count, 0u);
  }

  Held held_;  // outlives the Engine
  Engine engine_ = take(Engine::open(engine_options("near")));
  base::FdChannel raw_{base::Fd()};
  Peer peer_;
};

TEST_F(HostileRemotePeers, AreReachedByNoTransportOfTheHostWhateverTheyOffer) {
  greet({.engine = "odd",
         .process = base::this_process(),
         .key_share = {},
         .transports = {{.name = "local", .bytes = std::vector<std::byte>(64)}}});
  EXPECT_NE(engine_.dump().find(", by no transport;"), std::string::npos) << engine_.dump();
  send_raw(raw_, FrameOp::for_transport, control::encode_for_transport("local", 1, {}));
  send_raw(raw_, FrameOp::import, control::encode_import("nothing"));
  ASSERT_TRUE(next_raw(raw_).has_value());
  EXPECT_EQ(peer_.state(), PeerState::up);
}

TEST_F(HostileRemotePeers, BringNoKeyOfATransportOfTheHost) {
  greet();
  for (const std::uint32_t fds : {0u, 1u}) {
    std::jthread answering([&] {
      const auto asked = next_raw(raw_);
      ASSERT_TRUE(asked.has_value());
      const Status queued = raw_.queue({.op = static_cast<std::uint16_t>(FrameOp::imported),
                                        .id = asked->header.id,
                                        .incarnation = kRawIncarnation},
                                       control::encode_imported(descriptor(fds)), {});
      EXPECT_TRUE(queued.ok() && raw_.flush().ok());
    });
    const Status looked = peer_.lookup("kv", 5s).status();
    EXPECT_EQ(looked.code(), fds == 0 ? Code::unreachable : Code::corrupt) << looked.to_string();
    expect_says(looked, {fds == 0 ? "no transport of ours" : "without its fds"});
  }
  std::vector<std::byte> room(kBytes);
  const control::MessageOffer offer{.tag = 1,
                                    .bytes = kBytes,
                                    .kind = MemoryKind::device,
                                    .serial = 3,
                                    .descriptor = descriptor(0)};
  send_raw(raw_, FrameOp::offer, control::encode(offer));
  const Status received = finished(peer_.recv(1, room.data(), kBytes, {.deadline = 5s}));
  EXPECT_EQ(received.code(), Code::unreachable) << received.to_string();
}

TEST_F(HostileRemotePeers, GetNoKeyOfATransportOfTheHost) {
  greet();
  held_ = Held::make(engine_, {.kind = "shared", .bytes = kBytes});
  must(engine_.publish("kv", held_.region));
  send_raw(raw_, FrameOp::import, control::encode_import("kv"));
  expect_only_wires();

  const Transfer sent = take(peer_.send(1, held_.at(0), kBytes, {.deadline = 5s}));
  const auto said = next_raw(raw_);
  ASSERT_TRUE(said.has_value());
  const control::MessageOffer offer = take(control::decode_offer(said->payload));
  expect_only_wires(offer.descriptor);
  const auto descriptor = take(memory::decode(offer.descriptor));
  EXPECT_EQ(descriptor.bytes, kBytes);
  EXPECT_TRUE(descriptor.peers.read && !descriptor.peers.write);
  send_raw(raw_, FrameOp::import, control::encode_import({}, offer.serial));
  expect_only_wires();
  EXPECT_TRUE(sent.cancel().code() == Code::pending || sent.done());
}

}  // namespace remote_peers_test
}  // namespace linkspan::test
