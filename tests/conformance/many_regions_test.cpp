// Tests transfers of several pairs of regions between all kinds of memory, mixed in one transfer.
#include "tests/conformance/engine_world.hpp"

namespace linkspan::test {
namespace many_regions_test {

constexpr std::uint64_t kPage = 4096;
const std::vector<std::uint32_t> kOurs = {5, 0, 700, 2, 9}, kTheirs = {1, 300, 2, 0, 44};

std::vector<Block> blocks() {
  std::vector<Block> all;
  for (std::size_t i = 0; i < kOurs.size(); ++i)
    all.push_back({1 + kOurs[i] * kPage, 3 + kTheirs[i] * kPage, kPage});
  return all;
}
Pages pages() { return {kPage, 1, 3, kOurs, kTheirs}; }

class ManyRegions : public WorldPairs {
 protected:
  /// Moves the pages between all pairs in one transfer, and verifies every byte of each region.
  static void move(Op op, const std::vector<std::pair<Kind, Kind>>& pairs, bool prepared) {
    std::vector<Region> local;
    std::vector<RemoteRegion> remote;
    std::uint64_t seed = 100;
    for (const auto& [near, far] : pairs) {
      local.push_back(world().here(near).region);
      remote.push_back(world().remote(far));
      world().here(near).fill(seed++);
      world().pair().far.fill(far.name, seed++);
    }
    const Peer& peer = world().pair().peer;
    const auto start = [&] {
      if (prepared) return take(peer.prepare(op, local, remote, pages())).post();
      return op == Op::write ? peer.write(local, remote, pages())
                             : peer.read(local, remote, pages());
    };
    ASSERT_EQ(finished(start()).to_string(), "ok");
    seed = 100;
    for (const auto& [near, far] : pairs) {
      std::vector<Expected> here_due, there_due;
      for (const Block& b : blocks()) {
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
    for (const bool prepared : {false, true}) move(op, pairs, prepared);
}

INSTANTIATE_TEST_SUITE_P(Every, ManyRegions,
                         ::testing::Combine(::testing::ValuesIn(kKinds),
                                            ::testing::ValuesIn(kKinds)),
                         name_of_pair);

}  // namespace many_regions_test
}  // namespace linkspan::test
