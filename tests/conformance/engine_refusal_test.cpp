// Tests what an Engine refuses: with a typed error that names the value, and a connection that
// stays usable.
#include <limits>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace engine_refusal_test {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
constexpr Block kOneByte{0, 0, 1};

class EngineRefusals : public ::testing::Test {
 protected:
  void SetUp() override {
    here_ = Held::make(pair_.engine, {.kind = "shared"});
    pair_.far.add("there", {.kind = "shared"});
    there_ = pair_.remote("there");
  }
  /// Checks after each refusal that the connection works and nothing else has moved.
  void TearDown() override {
    here_.fill(1);
    pair_.far.fill("there", 2);
    EXPECT_EQ(finished(write({7, 9, 4097})).to_string(), "ok");
    EXPECT_EQ(pair_.far.difference("there", 2, {{9, 1, 7, 4097}}), "");
    EXPECT_EQ(here_.difference(1), "");
  }
  Result<Transfer> write(const Block& block) { return write(there_, block); }
  Result<Transfer> write(const RemoteRegion& remote, const Block& block = kOneByte) {
    return pair_.peer.write(here_.region, remote, std::span(&block, 1));
  }
  static void refused(const Status& status, Code code, const std::string& named) {
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_NE(status.what().find(named), std::string::npos)
        << "\"" << status.what() << "\" does not name " << named;
  }

  Held here_;  // outlives the Engine
  Pair pair_;
  RemoteRegion there_;
};

TEST_F(EngineRefusals, ANameOfMoreThan256Bytes) {
  refused(Engine::open(engine_options(std::string(257, 'n'))).status(), Code::invalid_argument,
          "257 bytes");
  Engine longest = take(Engine::open(engine_options(std::string(256, 'n'))));
  EXPECT_EQ(take(longest.connect(pair_.far.address())).name(), pair_.peer.name());
}

TEST_F(EngineRefusals, ABlockOutsideItsRegion) {
  for (const Block bad : {Block{kMiB, 0, 1}, Block{0, kMiB - 1, 2}, Block{kMiB + 1, 0, 0},
                          Block{kMax - 3, 0, 8}, Block{0, kMax - 3, 8}, Block{8, 8, kMax - 7}}) {
    const Block hidden[] = {{0, 0, 16}, bad};
    for (const Op op : {Op::write, Op::read}) {
      const Status status =
          finished(op == Op::write ? pair_.peer.write(here_.region, there_, hidden)
                                   : pair_.peer.read(here_.region, there_, hidden));
      const std::uint64_t wrong = std::max({bad.local_offset, bad.remote_offset});
      refused(status, Code::invalid_argument, std::to_string(wrong));
    }
  }
}

TEST_F(EngineRefusals, PagesOutsideTheirRegion) {
  const std::uint32_t zero[] = {0}, end[] = {kMiB / 4096}, two[] = {0, 1};
  for (const Pages& bad : {Pages{4096, 0, 0, zero, end}, Pages{4096, kMax - 4095, 0, end, zero},
                           Pages{64, 0, 0, two, zero}})
    EXPECT_EQ(finished(pair_.peer.write(here_.region, there_, bad)).code(), Code::invalid_argument);
}

TEST_F(EngineRefusals, WhatThePeerDoesNotPermit) {
  pair_.far.add("read only", {.kind = "shared", .peers = {.read = true}});
  pair_.far.add("write only", {.kind = "shared", .peers = {.write = true}});
  refused(finished(write(pair_.remote("read only"))), Code::permission_denied, "write");
  refused(
      finished(pair_.peer.read(here_.region, pair_.remote("write only"), std::span(&kOneByte, 1))),
      Code::permission_denied, "read");
}

TEST_F(EngineRefusals, AChecksumWhereNoneIsMade) {
  const auto one = std::span(&kOneByte, 1);
  const TransferOptions options{.checksum = true};
  const auto prepared = take(pair_.peer.prepare(Op::write, here_.region, there_, one));
  for (const auto& started :
       {pair_.peer.write(here_.region, there_, one, options),
        pair_.peer.read(here_.region, there_, one, options), prepared.post(options),
        pair_.engine.write_to_all(here_.region, {&there_, 1}, one, options).front()})
    refused(started.status(), Code::unsupported, "local makes no checksums");
  refused(pair_.peer.send(1, here_.at(0), 8, options).status(), Code::unsupported, "two-sided");
  refused(pair_.peer.recv(1, here_.at(0), 8, options).status(), Code::unsupported, "two-sided");
}

TEST_F(EngineRefusals, ARegionOfAnotherPeer) {
  FarEngine other;
  other.add("foreign", {.kind = "shared"});
  const Peer stranger = take(pair_.engine.connect(other.address()));
  const RemoteRegion foreign = take(stranger.lookup("foreign"));
  refused(finished(write(foreign)), Code::invalid_argument, "foreign");
  EXPECT_EQ(finished(stranger.write(here_.region, foreign, std::span(&kOneByte, 1))).to_string(),
            "ok");
}

TEST_F(EngineRefusals, ARegionOfAnotherEngine) {
  Held strange;
  Engine second = take(Engine::open(engine_options("second")));
  strange = Held::make(second, {.kind = "host"});
  EXPECT_EQ(finished(pair_.peer.write(strange.region, there_, std::span(&kOneByte, 1))).code(),
            Code::invalid_argument);
}

TEST_F(EngineRefusals, ARegionThatWasDeregistered) {
  pair_.far.add("dying", {.kind = "shared"});
  RemoteRegion dying = pair_.remote("dying");
  // names the peer that still maps it
  refused(pair_.far.deregister("dying", 20ms), Code::busy, "near");
  const Status late = finished(write(dying));
  EXPECT_EQ(late.code(), Code::unreachable) << late.to_string();
  refused(pair_.peer.lookup("dying").status(), Code::not_found, "dying");
  dying = {};
  EXPECT_EQ(pair_.far.deregister("dying", 5s).to_string(), "ok");

  Held gone = Held::make(pair_.engine, {.kind = "host"});
  EXPECT_EQ(pair_.engine.deregister(gone.region).to_string(), "ok");
  EXPECT_EQ(finished(pair_.peer.write(gone.region, there_, std::span(&kOneByte, 1))).code(),
            Code::invalid_argument);
  EXPECT_EQ(pair_.engine.deregister(gone.region).code(), Code::invalid_argument);
}

TEST_F(EngineRefusals, ARegionOfAnEarlierLife) {
  auto earlier = std::make_unique<FarEngine>();
  earlier->add("kv", {.kind = "shared"});
  const Peer before = take(pair_.engine.connect(earlier->address()));
  const RemoteRegion old = take(before.lookup("kv"));
  earlier.reset();
  ASSERT_TRUE(is_down(before, base::Deadline::after(base::Clock::steady(), 1s)));
  FarEngine restarted;
  restarted.add("kv", {.kind = "shared"});
  const Peer after = take(pair_.engine.connect(restarted.address()));
  refused(finished(after.write(here_.region, old, std::span(&kOneByte, 1))), Code::invalid_argument,
          "kv");
  const Status status = finished(before.write(here_.region, old, std::span(&kOneByte, 1)));
  EXPECT_EQ(status.code(), Code::disconnected) << status.to_string();
  const RemoteRegion fresh = take(after.lookup("kv"));
  EXPECT_EQ(finished(after.write(here_.region, fresh, std::span(&kOneByte, 1))).to_string(), "ok");
}

TEST_F(EngineRefusals, APointerThatIsNoMemory) {
  void* const nowhere = reinterpret_cast<void*>(std::uintptr_t{0x10000});  // NOLINT(*-int-to-ptr)
  refused(pair_.engine.register_memory(nowhere, 4096).status(), Code::invalid_argument, "10000");
  EXPECT_EQ(pair_.engine.register_memory(nullptr, 4096).status().code(), Code::invalid_argument);
  EXPECT_EQ(pair_.engine.register_memory(here_.buffer->data(), kMax).status().code(),
            Code::invalid_argument);
}

TEST_F(EngineRefusals, ANameThatIsNotThere) {
  refused(pair_.peer.lookup("no such name").status(), Code::not_found, "no such name");
  EXPECT_EQ(pair_.peer.lookup("").status().code(), Code::invalid_argument);
  EXPECT_EQ(pair_.peer.lookup(std::string(257, 'x')).status().code(), Code::invalid_argument);
  must(pair_.engine.publish("taken", here_.region));
  Held second = Held::make(pair_.engine, {.kind = "host"});
  refused(pair_.engine.publish("taken", second.region), Code::invalid_argument, "taken");
  EXPECT_EQ(pair_.engine.deregister(second.region).to_string(), "ok");
}

TEST_F(EngineRefusals, HandlesOfNothing) {
  EXPECT_EQ(finished(write(RemoteRegion())).code(), Code::invalid_argument);
  EXPECT_EQ(finished(pair_.peer.write(Region(), there_, std::span(&kOneByte, 1))).code(),
            Code::invalid_argument);
  EXPECT_EQ(finished(Peer().write(here_.region, there_, std::span(&kOneByte, 1))).code(),
            Code::invalid_argument);
  EXPECT_EQ(Peer().lookup("there").status().code(), Code::invalid_argument);
}

TEST_F(EngineRefusals, AMessageThatIsTooLarge) {
  const std::vector<std::byte> large(65537);
  refused(pair_.peer.notify(large), Code::invalid_argument, "65537");
  const auto moved =
      pair_.peer.write(here_.region, there_, std::span(&kOneByte, 1), {.notification = large});
  refused(finished(moved), Code::invalid_argument, "65537");
}

TEST_F(EngineRefusals, APathThatIsNotTheOneRequired) {
  const auto moved =
      pair_.peer.write(here_.region, there_, std::span(&kOneByte, 1), {.require = "cuda_ipc"});
  refused(finished(moved), Code::unsupported, "memfd");
  const auto against =
      pair_.peer.write(here_.region, there_, std::span(&kOneByte, 1), {.require = "!memfd"});
  refused(finished(against), Code::unsupported, "memfd");
  for (const char* required : {"memfd+cpu_threads", "!cuda_ipc"})
    EXPECT_EQ(finished(pair_.peer.write(here_.region, there_, std::span(&kOneByte, 1),
                                        {.require = required}))
                  .to_string(),
              "ok");
}

TEST_F(EngineRefusals, AnAddressWhereNobodyListens) {
  refused(pair_.engine.connect("nobody", 50ms).status(), Code::unreachable, "nobody");
  EXPECT_EQ(pair_.engine.connect("carrier-pigeon:coop", 50ms).status().code(),
            Code::invalid_argument);
}

TEST_F(EngineRefusals, ToMapAnExclusiveRegionWhichItsOwnerServes) {
  pair_.far.add("exclusive", {.kind = "shared", .peers = {true, true, true}});
  pair_.far.fill("exclusive", 2);
  here_.fill(1);
  const RemoteRegion exclusive = pair_.remote("exclusive");
  const auto why = take(pair_.peer.explain(Op::write, here_.region, exclusive, 1, kMiB));
  EXPECT_EQ(why.executor, "peer");
  ASSERT_FALSE(why.refused.empty());
  EXPECT_NE(why.refused.front().reason.find("exclusive"), std::string::npos);
  EXPECT_EQ(finished(write(exclusive, {3, 5, 9999})).to_string(), "ok");
  EXPECT_EQ(pair_.far.difference("exclusive", 2, {{5, 1, 3, 9999}}), "");

  // If neither side can map the other's memory, each copies its own.
  Held secret = Held::make(pair_.engine, {.kind = "host", .peers = {true, true, true}});
  const auto both = take(pair_.peer.explain(Op::write, secret.region, exclusive, 1, 1));
  EXPECT_EQ(both.path, "bounce+cpu_threads");
  EXPECT_EQ(both.executor, "both");
  for (const PathRefusal& refusal : both.refused)
    EXPECT_NE(refusal.reason.find("exclusive"), std::string::npos) << refusal.path;
  const auto moved =
      pair_.peer.write(secret.region, exclusive, std::span(&kOneByte, 1), {.require = "!bounce"});
  refused(finished(moved), Code::unsupported, "bounce+cpu_threads");
  EXPECT_EQ(pair_.engine.deregister(secret.region).to_string(), "ok");
}

}  // namespace engine_refusal_test
}  // namespace linkspan::test
