// Tests the names of this side's regions: what a peer is told of a set, and when a wait for a
// version is answered.
#include "engine/directory/region_directory.hpp"

#include "tests/unit/engine_pair.hpp"

namespace linkspan::engine {
namespace region_directory_test {

using namespace std::chrono_literals;
using control::AskSet, control::FrameOp;
using test::impl_of, test::is, test::must, test::RawPeer, test::take;

constexpr std::uint64_t kProbe = 999;

class Directory : public test::EnginePair {
 protected:
  Region region() { return take(far_.allocate_shared(4096)); }
  static std::uint64_t serial_of(const Region& region) {
    return HandleAccess::registration(region)->id().serial;
  }
  std::uint64_t publish(std::string_view name, const Region& region) {
    return take(service_.publish(name, std::span(&region, 1)));
  }
  static void ask(RawPeer& peer, std::uint64_t request, const AskSet& ask) {
    peer.send(FrameOp::ask_set, request, control::encode(ask));
  }
  void ask(std::uint64_t request, const AskSet& question) { ask(raw_, request, question); }
  /// Returns the request that the next frame answers, and the version in it.
  static std::pair<std::uint64_t, std::uint64_t> next(RawPeer& peer) {
    const auto frame = peer.next(FrameOp::set);
    return {frame.header.id, take(control::decode_set(frame.payload)).version};
  }
  /// Returns once the requests before were handled; none of them was answered.
  static void expect_silence(RawPeer& peer) {
    ask(peer, kProbe, {.name = "nothing"});
    const auto frame = peer.next(FrameOp::error);
    EXPECT_EQ(frame.header.id, kProbe);
    EXPECT_TRUE(is(control::decode_error(frame.payload), Code::not_found));
  }
  using Answer = std::pair<std::uint64_t, std::uint64_t>;

  RegionDirectory& service_ = impl_of(far_).services().directory;
  RawPeer raw_{far_};
};

TEST_F(Directory, RefusesWhatIsNoRegionOrHasNoName) {
  const Region here = region(), none;
  EXPECT_TRUE(is(service_.publish("a", none), Code::invalid_argument, "a region and a name"));
  EXPECT_TRUE(is(service_.publish("", here), Code::invalid_argument, "a region and a name"));
  const Region set[] = {here, none};
  EXPECT_TRUE(is(service_.publish("a", set).status(), Code::invalid_argument,
                 "number 1 of the set is no region"));
  EXPECT_TRUE(
      is(service_.publish("a", std::span<const Region>()).status(), Code::invalid_argument));
  const Region ended = region();
  must(far_.deregister(ended));
  EXPECT_FALSE(service_.publish("a", ended).ok());
  ask(1, {.name = "a"});
  EXPECT_TRUE(is(raw_.next_error(), Code::not_found, R"(no region is published as "a")"));
}

TEST_F(Directory, TellsTheSerialsOfTheNewestVersion) {
  const Region regions[] = {region(), region()};
  const std::uint64_t first = take(service_.publish("set", regions));
  const std::uint64_t second = take(service_.publish("set", std::span(regions).first(1)));
  EXPECT_GT(second, first);
  const Region two[] = {regions[1], regions[0]};
  const std::uint64_t third = take(service_.publish("set", two));
  EXPECT_GT(third, second);
  ask(5, {.name = "set"});
  const auto frame = raw_.next(FrameOp::set);
  EXPECT_EQ(frame.header.id, 5u);
  const memory::PublishedSet set = take(control::decode_set(frame.payload));
  EXPECT_EQ(set.version, third);
  EXPECT_EQ(set.serials, (std::vector{serial_of(regions[1]), serial_of(regions[0])}));
}

TEST_F(Directory, TellsOfARegionAsOfASetOfOne) {
  const Region here = region();
  ask(1, {.name = "one", .waits = true});
  expect_silence(raw_);
  must(service_.publish("one", here));
  const auto frame = raw_.next(FrameOp::set);
  EXPECT_EQ(frame.header.id, 1u);
  EXPECT_EQ(take(control::decode_set(frame.payload)).serials, std::vector{serial_of(here)});
}

TEST_F(Directory, AnswersAWaitByTheFirstVersionAbove) {
  const Region here = region(), other = region();
  const std::uint64_t version = publish("set", here);
  ask(1, {.name = "set", .above = version + 1, .waits = true});
  ask(2, {.name = "set", .above = version, .waits = true});
  ask(3, {.name = "another", .waits = true});
  expect_silence(raw_);
  EXPECT_EQ(publish("set", here), version + 1);
  EXPECT_EQ(next(raw_), (Answer{2, version + 1}));
  EXPECT_EQ(publish("set", here), version + 2);
  EXPECT_EQ(next(raw_), (Answer{1, version + 2}));
  // Each was answered once, and the third not by a set of another name.
  EXPECT_EQ(publish("set", here), version + 3);
  EXPECT_EQ(publish("another", other), version + 4);
  EXPECT_EQ(next(raw_), (Answer{3, version + 4}));
}

TEST_F(Directory, AnswersAWaitAtOnce_WhenTheVersionIsThere) {
  const std::uint64_t version = publish("set", region());
  ask(1, {.name = "set", .above = version - 1, .waits = true});
  EXPECT_EQ(next(raw_), (Answer{1, version}));
}

TEST_F(Directory, EndsAWait_WhenItsPeerGivesUp) {
  const Region here = region();
  ask(1, {.name = "set", .waits = true});
  ask(1, {});
  expect_silence(raw_);
  (void)publish("set", here);
  expect_silence(raw_);
}

TEST_F(Directory, BoundsTheWaitsOfAPeer) {
  const Region here = region();
  for (std::uint64_t i = 1; i <= RegionDirectory::kMaxWaits; ++i)
    ask(i, {.name = "set", .waits = true});
  expect_silence(raw_);
  ask(100, {.name = "set", .waits = true});
  EXPECT_TRUE(is(raw_.next_error(), Code::no_resource,
                 "64 of yours wait here for a version: at most that"));
  // One that repeats its request, or is another peer, takes no further place.
  ask(1, {.name = "set", .waits = true});
  expect_silence(raw_);
  RawPeer beside(far_);
  ask(beside, 1, {.name = "set", .waits = true});
  expect_silence(beside);
  ask(2, {});
  ask(100, {.name = "set", .waits = true});
  expect_silence(raw_);
  (void)publish("set", here);
  std::set<std::uint64_t> answered;
  for (std::size_t i = 0; i < RegionDirectory::kMaxWaits; ++i) answered.insert(next(raw_).first);
  EXPECT_EQ(answered.size(), RegionDirectory::kMaxWaits);
  EXPECT_TRUE(answered.contains(100) && !answered.contains(2));
  EXPECT_EQ(next(beside).first, 1u);
}

TEST_F(Directory, ForgetsTheWaitsOfOnePeer) {
  const Region here = region();
  RawPeer beside(far_);
  for (RawPeer* each : {&raw_, &beside}) {
    ask(*each, 1, {.name = "set", .waits = true});
    expect_silence(*each);
  }
  service_.forget_peer(raw_.peer().id());
  const std::uint64_t version = publish("set", here);
  EXPECT_EQ(next(beside), (Answer{1, version}));
  expect_silence(raw_);
}

}  // namespace region_directory_test
}  // namespace linkspan::engine
