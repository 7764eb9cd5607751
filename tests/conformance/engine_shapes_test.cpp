// Tests pages and strides of any size between every pair of memories, submitted and prepared.
#include <algorithm>
#include <numeric>
#include <random>
#include <thread>
#include <tuple>

#include "tests/conformance/engine_world.hpp"
#include "tests/support/sanitizers.hpp"

namespace linkspan::test {
namespace engine_shapes_test {

using Indices = std::vector<std::uint32_t>;
using Level = Strides::Level;

/// A page list and what owns its indices: pages of one size, each used once, in no order.
struct Shuffled {
  Indices ours, theirs;
  Pages pages;

  Shuffled(std::uint64_t page_bytes, std::size_t count, std::uint64_t local_base = 1,
           std::uint64_t remote_base = 2) {
    const auto some = [&](std::uint64_t base, unsigned seed) {
      Indices all((World::kBytes - base) / page_bytes);
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), std::mt19937(seed));
      all.resize(count);
      return all;
    };
    ours = some(local_base, 1);
    theirs = some(remote_base, 2);
    pages = {page_bytes, local_base, remote_base, ours, theirs};
  }
  Shuffled(const Shuffled&) = delete;
  Shuffled& operator=(const Shuffled&) = delete;

  Block at(std::size_t i) const {
    return {pages.local_base + ours[i] * pages.page_bytes,
            pages.remote_base + theirs[i] * pages.page_bytes, pages.page_bytes};
  }
  std::vector<Block> blocks() const {
    std::vector<Block> all;
    for (std::size_t i = 0; i < ours.size(); ++i) all.push_back(at(i));
    return all;
  }
  std::vector<Block> blocks(const Indices& positions) const {
    std::vector<Block> some;
    for (const std::uint32_t i : positions) some.push_back(at(i));
    return some;
  }
};

std::vector<Block> blocks_of(const Strides& s) {
  std::vector<Block> all;
  for (std::uint64_t i = 0; i < s.levels[0].count; ++i)
    for (std::uint64_t j = 0; j < s.levels[1].count; ++j)
      for (std::uint64_t k = 0; k < s.levels[2].count; ++k)
        all.push_back({s.local_base + i * s.levels[0].local_step + j * s.levels[1].local_step +
                           k * s.levels[2].local_step,
                       s.remote_base + i * s.levels[0].remote_step + j * s.levels[1].remote_step +
                           k * s.levels[2].remote_step,
                       s.bytes});
  return all;
}

class EngineShapePairs : public WorldPairs {
 protected:
  template <class Shape>
  static void move(Op op, const std::vector<Block>& blocks, const Shape& shape) {
    world().move(near(), far(), op, blocks, shape, {});
  }
  template <class Shape>
  static Prepared prepare(Op op, const Shape& shape) {
    return take(
        world().pair().peer.prepare(op, world().here(near()).region, world().remote(far()), shape));
  }
};

TEST_P(EngineShapePairs, MovesPagesOfEverySize) {
  for (const auto& [page_bytes, count] : {std::pair<std::uint64_t, std::size_t>{1, 0},
                                          {257, 1},
                                          {1, 100},
                                          {3, 99},
                                          {16, 257},
                                          {256, 70},
                                          {257, 150}}) {
    SCOPED_TRACE(page_bytes);
    const Shuffled list(page_bytes, count);
    move(count % 2 == 0 ? Op::write : Op::read, list.blocks(), list.pages);
  }
}

TEST_P(EngineShapePairs, MovesMorePagesThanABatchHolds) {
  const Shuffled list(13, 100'000);
  move(Op::read, list.blocks(), list.pages);
  // Moves there and back, because that many blocks are too many to request from the far end.
  Held& here = world().here(near());
  const RemoteRegion& there = world().remote(far());
  here.fill(3);
  EXPECT_EQ(finished(world().pair().peer.write(here.region, there, list.pages)).to_string(), "ok");
  here.fill(4);
  EXPECT_EQ(finished(world().pair().peer.read(here.region, there, list.pages)).to_string(), "ok");
  std::vector<Expected> due;
  for (const Block& b : list.blocks()) due.push_back({b.local_offset, 3, b.local_offset, b.bytes});
  EXPECT_EQ(here.difference(4, due), "");
}

TEST_P(EngineShapePairs, MovesStridesOfEverySize) {
  for (const std::uint64_t bytes : {1u, 7u, 16u, 255u, 257u}) {
    SCOPED_TRACE(bytes);
    // A head's slice of every token of every layer; here of 3 heads, there of 7.
    const Strides slices{
        .bytes = bytes,
        .local_base = 1,
        .remote_base = 2 * bytes + 3,
        .levels = {Level{50, 3 * bytes, 7 * bytes}, Level{4, 200 * bytes + 1, 400 * bytes + 5},
                   Level{2, 1'000'001, 900'000}}};
    for (const Op op : {Op::write, Op::read}) move(op, blocks_of(slices), slices);
  }
}

TEST_P(EngineShapePairs, MovesStridesThatMergeOrAreMany) {
  const Strides merge{.bytes = 33,
                      .local_base = 5,
                      .remote_base = 6,
                      .levels = {Level{9, 33, 33}, Level{7, 400, 297}, Level{11, 3000, 4001}}};
  move(Op::write, blocks_of(merge), merge);
  const Strides many{.bytes = 1, .levels = {Level{100, 3, 5}, Level{300, 310, 600}}};
  move(Op::write, blocks_of(many), many);
  move(Op::read, blocks_of(many), many);
  const Strides none{.bytes = 64, .local_base = 1, .levels = {Level{0, 64, 64}}};
  move(Op::write, {}, none);
}

TEST_P(EngineShapePairs, WhatIsPreparedIsPostedAgainAndAgain) {
  for (const Op op : {Op::write, Op::read}) {
    const Shuffled list(257, 301);
    const Prepared pages = prepare(op, list.pages);
    EXPECT_EQ(pages.bytes(), 257u * 301);
    for (int i = 0; i < 3; ++i)
      world().move(near(), far(), op, list.blocks(), [&] { return pages.post(); });
    const Indices some = {300, 0, 17, 18, 19, 2};
    world().move(near(), far(), op, list.blocks(some), [&] { return pages.post(some); });
    world().move(near(), far(), op, {}, [&] { return pages.post(Indices()); });

    const Strides strides{.bytes = 40, .local_base = 9, .levels = {Level{500, 100, 300}}};
    const Prepared repeated = prepare(op, strides);
    const std::vector<Block> list_of_blocks = blocks_of(strides);
    const Prepared blocks = prepare(op, std::span<const Block>(list_of_blocks));
    for (int i = 0; i < 2; ++i)
      for (const Prepared& each : {repeated, blocks})
        world().move(near(), far(), op, list_of_blocks, [&] { return each.post(); });
  }
}

TEST_P(EngineShapePairs, WhatIsPreparedKeepsNoListOfTheUsers) {
  Shuffled list(64, 40'000);  // more than a batch holds
  const std::vector<Block> blocks = list.blocks();
  const Prepared prepared = prepare(Op::write, list.pages);
  std::ranges::fill(list.ours, 0);
  std::ranges::fill(list.theirs, ~0u);
  world().move(near(), far(), Op::write, blocks, [&] { return prepared.post(); });
}

TEST_P(EngineShapePairs, ManyThreadsPostPartsOfOneAtOnce) {
  constexpr unsigned kThreads = 4, kPosts = 12;
  const Shuffled list(100, 9600);
  const Prepared prepared = prepare(Op::write, list.pages);
  world().move(near(), far(), Op::write, list.blocks(), [&]() -> Result<Transfer> {
    std::vector<std::string> wrong(kThreads);
    {
      std::vector<std::jthread> threads;
      for (unsigned t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
          std::vector<Transfer> posted;
          for (unsigned k = 0; k < kPosts; ++k) {
            Indices part(list.ours.size() / (kThreads * kPosts));
            std::iota(part.begin(), part.end(), (t * kPosts + k) * part.size());
            posted.push_back(take(prepared.post(part)));
          }
          for (const Transfer& each : posted)
            if (const Status end = each.wait(30s); !end.ok()) wrong[t] = end.to_string();
        });
    }
    for (const std::string& text : wrong) EXPECT_EQ(text, "");
    return prepared.post(Indices());
  });
}

TEST_P(EngineShapePairs, NoByteOfAListLandsAfterACancel) {
  const Shuffled list(29, 100'000);
  for (const Op op : {Op::write, Op::read}) {
    const Prepared prepared = prepare(op, list.pages);
    std::vector<Transfer> posted;
    for (std::uint32_t i = 0; i < 4; ++i) {  // those in flight at once write no byte twice
      Indices part(list.ours.size() / 4);
      std::iota(part.begin(), part.end(), static_cast<std::uint32_t>(i * part.size()));
      posted.push_back(take(prepared.post(part)));
    }
    for (const Transfer& each : posted) {
      const Status asked = each.cancel();
      EXPECT_TRUE(asked.ok() || asked.code() == Code::pending) << asked.to_string();
    }
    for (const Transfer& each : posted) {
      const Status end = each.wait(10s);
      ASSERT_TRUE(each.done());
      EXPECT_TRUE(end.ok() || end.code() == Code::canceled) << end.to_string();
    }
    world().here(near()).fill(8);  // the user has both memories back, and uses them
    world().pair().far.fill(far().name, 9);
    EXPECT_EQ(world().here(near()).difference(8), "");
    EXPECT_EQ(world().pair().far.difference(far().name, 9), "");
  }
}

#if defined(LINKSPAN_SANITIZER)  // takes its time, and knows no kinds of memory
constexpr Kind kEnds[] = {kKinds[1], kKinds[3]};
#else
constexpr auto& kEnds = kKinds;
#endif
INSTANTIATE_TEST_SUITE_P(Every, EngineShapePairs,
                         ::testing::Combine(::testing::ValuesIn(kEnds), ::testing::ValuesIn(kEnds)),
                         name_of_pair);
INSTANTIATE_TEST_SUITE_P(Bounced, EngineShapePairs,
                         ::testing::Values(std::tuple{kUnshared[0], kUnshared[1]},
                                           std::tuple{kKinds[3], kUnshared[1]},
                                           std::tuple{kUnshared[0], kKinds[3]}),
                         name_of_pair);

/// A pair of kinds of which the CPU here sees its side.
class EngineOverlaps : public EngineShapePairs {};

TEST_P(EngineOverlaps, WhatIsReadMayOverlapAndWhatIsWrittenTwiceIsEithers) {
  constexpr std::uint64_t kPage = 61;
  // Page 0 here is written by two, page 1 by one; there page 5 is read twice.
  const std::uint32_t ours[] = {0, 0, 1}, theirs[] = {5, 9, 5};
  Held& here = world().here(near());
  here.fill(1);
  world().pair().far.fill(far().name, 2);
  const Pages pages{kPage, 3, 4, ours, theirs};
  EXPECT_EQ(
      finished(world().pair().peer.read(here.region, world().remote(far()), pages)).to_string(),
      "ok");
  EXPECT_EQ(here.difference(1, {{3 + kPage, 2, 4 + 5 * kPage, kPage}}, {{3, kPage}}), "");
  std::vector<std::byte> one(kPage), other(kPage);
  put_pattern(one, 2, Buffer::kGuard + 4 + 5 * kPage);
  put_pattern(other, 2, Buffer::kGuard + 4 + 9 * kPage);
  for (std::size_t i = 0; i < kPage; ++i) {
    const std::byte got = *here.at(3 + i);
    EXPECT_TRUE(got == one[i] || got == other[i]) << i;
  }
  const Strides same{.bytes = 8, .remote_base = 16, .levels = {Level{100, 8, 0}}};
  world().move(near(), far(), Op::read, blocks_of(same), same, {});
}

INSTANTIATE_TEST_SUITE_P(Every, EngineOverlaps,
                         ::testing::Combine(::testing::Values(kKinds[2], kKinds[3], kKinds[4]),
                                            ::testing::ValuesIn(kKinds)),
                         name_of_pair);

}  // namespace engine_shapes_test
}  // namespace linkspan::test
