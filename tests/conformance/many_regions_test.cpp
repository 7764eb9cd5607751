// Tests transfers of several pairs of regions between all kinds of memory, mixed in one transfer.
#include <deque>

#include "tests/conformance/engine_world.hpp"

namespace linkspan::test {
namespace many_regions_test {

using namespace std::chrono_literals;

constexpr std::uint64_t kPage = 4096;

/// The page lists of one pair of regions.
struct PageLists {
  std::vector<std::uint32_t> ours = {5, 0, 700, 2, 9}, theirs = {1, 300, 2, 0, 44};

  Pages pages() const { return {kPage, 1, 3, ours, theirs}; }
  std::vector<Block> blocks() const {
    std::vector<Block> all;
    for (std::size_t i = 0; i < ours.size(); ++i)
      all.push_back({1 + ours[i] * kPage, 3 + theirs[i] * kPage, kPage});
    return all;
  }
  /// Others than those of any other pair, in number too.
  static PageLists of_pair(std::uint32_t pair) {
    PageLists made;
    made.ours.resize(1 + pair % 5);
    made.theirs.resize(made.ours.size());
    for (std::uint32_t& index : made.ours) index += pair;
    for (std::uint32_t& index : made.theirs) index += 2 * pair;
    return made;
  }
};

class ManyRegions : public WorldPairs {
 protected:
  /// Moves pages between all pairs in one transfer, and verifies every byte of each region.
  static void move(Op op, const std::vector<std::pair<Kind, Kind>>& pairs, bool prepared,
                   bool same) {
    std::vector<Region> local;
    std::vector<RemoteRegion> remote;
    std::deque<PageLists> lists;
    std::vector<TransferPart> parts;
    std::uint64_t seed = 100;
    for (const auto& [near, far] : pairs) {
      local.push_back(world().here(near).region);
      remote.push_back(world().remote(far));
      const auto number = static_cast<std::uint32_t>(lists.size());
      lists.push_back(same ? PageLists() : PageLists::of_pair(number));
      parts.push_back({local.back(), remote.back(), lists.back().pages()});
      world().here(near).fill(seed++);
      world().pair().far.fill(far.name, seed++);
    }
    const Peer& peer = world().pair().peer;
    const auto start = [&] {
      const Pages pages = lists.front().pages();
      if (prepared && same) return take(peer.prepare(op, local, remote, pages)).post();
      if (prepared) return take(peer.prepare(op, parts)).post();
      if (!same) return op == Op::write ? peer.write(parts) : peer.read(parts);
      return op == Op::write ? peer.write(local, remote, pages) : peer.read(local, remote, pages);
    };
    ASSERT_EQ(finished(start()).to_string(), "ok");
    seed = 100;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const auto& [near, far] = pairs[i];
      std::vector<Expected> here_due, there_due;
      for (const Block& b : lists[i].blocks()) {
        if (op == Op::write)
          there_due.push_back({b.remote_offset, seed, b.local_offset, b.bytes});
        else
          here_due.push_back({b.local_offset, seed + 1, b.remote_offset, b.bytes});
      }
      EXPECT_EQ(world().here(near).difference(seed, here_due), "") << near.name;
      EXPECT_EQ(world().pair().far.difference(far.name, seed + 1, there_due), "") << far.name;
      seed += 2;
    }
  }
};

TEST_P(ManyRegions, MoveTogetherWithAPairOfOtherKinds) {
  // Kinds that differ from the pair's, so that no region is in the transfer twice.
  std::vector<std::pair<Kind, Kind>> pairs = {{near(), far()}};
  for (const Kind& kind : kKinds) {
    const bool taken =
        std::string_view(kind.name) == near().name || std::string_view(kind.name) == far().name;
    if (!taken && kinds_here({kind}).ok()) pairs.emplace_back(kind, kind);
  }
  for (const Op op : {Op::write, Op::read})
    for (const bool prepared : {false, true})
      for (const bool same : {true, false}) move(op, pairs, prepared, same);
}

INSTANTIATE_TEST_SUITE_P(Every, ManyRegions,
                         ::testing::Combine(::testing::ValuesIn(kKinds),
                                            ::testing::ValuesIn(kKinds)),
                         name_of_pair);

/// The pairs that share a launch are remembered for the next transfer between them.
TEST(PairsOfOneLaunch, AreToldApart_WhenOneOfThemHasGoneSinceTheLastTransfer) {
  const Status here = kinds_here({kind_of("device0"), kind_of("device1")});
  if (!here.ok()) GTEST_SKIP() << here.to_string();
  constexpr std::size_t kRegions = 40, kGone = 23;
  constexpr std::uint64_t kBytes = 16 * 1000 + 3;
  const std::vector<std::uint32_t> ours = {5, 0, 14}, theirs = {1, 3, 15};
  const Pages pages{1000, 1, 3, ours, theirs};
  std::deque<Held> held;  // outlive the Engine
  Pair pair;
  std::vector<Region> local;
  std::vector<RemoteRegion> remote;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kRegions; ++i) {
    names.push_back("layer " + std::to_string(i));
    held.push_back(Held::make(pair.engine, {.kind = "device0", .bytes = kBytes}));
    pair.far.add(names[i], {.kind = "device1", .bytes = kBytes});
    local.push_back(held[i].region);
    remote.push_back(pair.remote(names[i]));
    held[i].fill(i);
  }
  const auto expect_moved = [&](std::size_t i) {
    std::vector<Expected> due;
    for (std::size_t k = 0; k < ours.size(); ++k)
      due.push_back({3 + theirs[k] * 1000, i, 1 + ours[k] * 1000, 1000});
    EXPECT_EQ(pair.far.difference(names[i], 100 + i, due), "") << i;
  };
  for (int again = 0; again < 3; ++again) {
    for (std::size_t i = 0; i < kRegions; ++i) pair.far.fill(names[i], 100 + i);
    ASSERT_EQ(finished(pair.peer.write(local, remote, pages)).to_string(), "ok");
    for (std::size_t i = 0; i < kRegions; ++i) expect_moved(i);
  }
  ASSERT_EQ(pair.far.deregister(names[kGone], 50ms).code(), Code::busy) << "it is mapped here";
  const Status refused = finished(pair.peer.write(local, remote, pages));
  EXPECT_EQ(refused.code(), Code::unreachable);
  EXPECT_NE(refused.to_string().find("pair 23: the peer has deregistered"), std::string::npos)
      << refused.to_string();
  local.erase(local.begin() + kGone);
  remote.erase(remote.begin() + kGone);
  EXPECT_EQ(pair.far.deregister(names[kGone], 10s).to_string(), "ok");
  for (std::size_t i = 0; i < kRegions; ++i)
    if (i != kGone) pair.far.fill(names[i], 100 + i);
  ASSERT_EQ(finished(pair.peer.write(local, remote, pages)).to_string(), "ok");
  for (std::size_t i = 0; i < kRegions; ++i)
    if (i != kGone) expect_moved(i);
}

}  // namespace many_regions_test
}  // namespace linkspan::test
