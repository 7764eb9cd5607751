// Tests sets between an Engine and one that breaks the rules: of another release, with false claims
// about what it publishes, or with too many requests.
#include <thread>

#include "base/schema/control_generated.h"
#include "base/schema/flat.hpp"
#include "tests/conformance/engine_fixture.hpp"
#include "tests/faults/raw_peer.hpp"

namespace linkspan::test {
namespace sets_test {

using control::FrameOp;

std::vector<std::byte> set_of(std::uint64_t version, const std::vector<std::uint64_t>& serials) {
  return control::encode_set({.version = version, .serials = serials});
}

class OddSets : public ::testing::Test {
 protected:
  void SetUp() override {
    must(engine_.listen());
    region_ = take(engine_.allocate_shared(4096));
    must(engine_.publish("kv", region_));
    odd_ = std::make_unique<RawPeer>(engine_.address());
    ASSERT_TRUE(odd_->greet(RawPeer::hello()));
    peer_ = take(engine_.accept(5s));
  }
  /// Checks that a correct peer is served as before.
  void TearDown() override {
    Engine other = take(Engine::open(without_gpu("other")));
    const Peer peer = take(other.connect(engine_.address()));
    EXPECT_EQ(take(peer.lookup_set("kv")).regions.size(), 1u);
  }
  static EngineOptions without_gpu(const char* name) {
    EngineOptions options = engine_options(name);
    options.use_gpu = false;
    return options;
  }
  /// Returns the result of lookup_set() when the odd peer gives that answer.
  Status looked_up(FrameOp op, std::span<const std::byte> answer) {
    std::jthread answering([&] {
      const auto asked = odd_->next();
      ASSERT_TRUE(asked.has_value());
      EXPECT_EQ(static_cast<FrameOp>(asked->header.op), FrameOp::ask_set);
      odd_->send(op, answer, asked->header.id);
    });
    return peer_.lookup_set("w", 5s).status();
  }
  /// Returns the answer to a request of the odd peer.
  Status asked(FrameOp op, std::span<const std::byte> question, std::uint64_t id = 7) {
    EXPECT_TRUE(odd_->send(op, question, id));
    return odd_->refusal();
  }

  Engine engine_ = take(Engine::open(without_gpu("engine")));
  Region region_;
  std::unique_ptr<RawPeer> odd_;
  Peer peer_;
};

TEST_F(OddSets, AnOlderReleaseHasNone) {
  const Status older = looked_up(
      FrameOp::error, control::encode_error(Status(Code::unsupported, Scope::request, "op 15")));
  EXPECT_EQ(older.code(), Code::unsupported) << older.to_string();
  EXPECT_EQ(peer_.state(), PeerState::up);
}

TEST_F(OddSets, ARegionIsNoAnswerToThatQuestion) {
  const auto answer = control::encode_imported(std::vector<std::byte>(16));
  EXPECT_EQ(looked_up(FrameOp::imported, answer).code(), Code::corrupt);
}

TEST_F(OddSets, ASetIsNoAnswerToALookup) {
  std::jthread answering([&] {
    const auto asked = odd_->next();
    ASSERT_TRUE(asked.has_value());
    odd_->send(FrameOp::set, set_of(1, {1}), asked->header.id);
    odd_->send(FrameOp::set, set_of(2, {2}), asked->header.id);
    odd_->send(FrameOp::set, set_of(3, {3}), asked->header.id + 1000);  // without a request
  });
  EXPECT_EQ(peer_.lookup("w", 5s).status().code(), Code::corrupt);
}

TEST_F(OddSets, VersionsWithoutEndMeetTheDeadline) {
  std::jthread answering([&](const std::stop_token& stop) {
    for (std::uint64_t version = 1; !stop.stop_requested(); ++version) {
      const auto asked = odd_->next();
      if (!asked) return;
      if (static_cast<FrameOp>(asked->header.op) == FrameOp::ask_set)
        odd_->send(FrameOp::set, set_of(version, {1, 2, 3}), asked->header.id);
      else
        odd_->send(FrameOp::error,
                   control::encode_error(Status(Code::not_found, Scope::request, "not any more")),
                   asked->header.id);
    }
  });
  const Status endless = peer_.lookup_set("w", 200ms).status();
  EXPECT_EQ(endless.code(), Code::timed_out) << endless.to_string();
  EXPECT_NE(endless.what().find("published anew"), std::string::npos) << endless.to_string();
  must(engine_.close(5s));  // ends the other's wait
  answering.join();
  engine_ = take(Engine::open(without_gpu("engine")));
  must(engine_.listen());
  must(engine_.publish("kv", take(engine_.allocate_shared(4096))));
}

/// A set whose bytes cannot be one: its sender is dropped.
class MalformedSets
    : public OddSets,
      public ::testing::WithParamInterface<std::pair<std::uint64_t, std::vector<std::uint64_t>>> {};

TEST_P(MalformedSets, DropTheirSender) {
  const auto& [version, serials] = GetParam();
  const Status status = looked_up(FrameOp::set, set_of(version, serials));
  EXPECT_EQ(status.code(), Code::disconnected) << status.to_string();
  EXPECT_EQ(odd_->refusal().code(), Code::corrupt);
}

INSTANTIATE_TEST_SUITE_P(Every, MalformedSets,
                         ::testing::Values(std::pair(0, std::vector<std::uint64_t>{1}),
                                           std::pair(1, std::vector<std::uint64_t>{}),
                                           std::pair(1, std::vector<std::uint64_t>{1, 0}),
                                           std::pair(1, std::vector<std::uint64_t>(1025, 1))));

TEST_F(OddSets, ImportsNothingThatTheNameDoesNotStandFor) {
  const Region secret = take(engine_.allocate_shared(4096));  // serial 2
  const Region other = take(engine_.allocate_shared(4096));
  must(engine_.publish("other", other));
  for (std::uint64_t serial = 2; serial < 6; ++serial)
    EXPECT_EQ(asked(FrameOp::import, control::encode_import("kv", serial)).code(), Code::not_found);
  EXPECT_EQ(asked(FrameOp::import, control::encode_import("", 2)).code(), Code::not_found);
  EXPECT_EQ(asked(FrameOp::import, control::encode_import("nobody", 1)).code(), Code::not_found);
}

TEST_F(OddSets, WaitsForNoMoreThanItMay) {
  const auto wait = control::encode(control::AskSet{.name = "w", .above = 0, .waits = true});
  for (std::uint64_t id = 1; id <= 64; ++id) ASSERT_TRUE(odd_->send(FrameOp::ask_set, wait, id));
  ASSERT_TRUE(odd_->send(FrameOp::ask_set, wait, 64));  // the same again
  EXPECT_EQ(asked(FrameOp::ask_set, wait, 65).code(), Code::no_resource);
  ASSERT_TRUE(odd_->send(FrameOp::ask_set, control::encode(control::AskSet{}), 3));  // gives up
  ASSERT_TRUE(odd_->send(FrameOp::ask_set, wait, 65));
  EXPECT_EQ(asked(FrameOp::ask_set, wait, 66).code(), Code::no_resource);
  const std::vector<Region> set = {take(engine_.allocate_shared(64))};
  const std::uint64_t version = take(engine_.publish("w", set));
  for (int i = 0; i < 64; ++i) {
    const auto told = odd_->next();
    ASSERT_TRUE(told.has_value());
    EXPECT_NE(told->header.id, 3u);
    ASSERT_EQ(static_cast<FrameOp>(told->header.op), FrameOp::set);
    EXPECT_EQ(take(control::decode_set(told->payload)).version, version);
  }
  EXPECT_EQ(asked(FrameOp::ask_set, control::encode(control::AskSet{.name = "v"})).code(),
            Code::not_found);
  EXPECT_EQ(asked(FrameOp::ask_set, control::encode(control::AskSet{.name = std::string(257, 'x')}))
                .code(),
            Code::corrupt);
}

}  // namespace sets_test
}  // namespace linkspan::test
