// Tests transfers between several pairs of regions that are prepared once and posted repeatedly.
#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

#include "tests/unit/many_pairs.hpp"

namespace linkspan::engine {
namespace submission_prepared_test {

using namespace std::chrono_literals;
using test::is, test::must, test::take;

constexpr std::uint64_t kPage = 512;

/// Pairs of regions that are prepared, and what a post of them has to move.
class PreparedPairs : public test::ManyPairs {
 protected:
  /// Expects that the blocks were written in the pairs of `written`, and nowhere else. Fills the
  /// peer's regions again.
  void expect_written(const std::vector<std::size_t>& written, std::span<const Block> blocks) {
    for (std::size_t i = 0; i < theirs_.size(); ++i) {
      const bool in = std::ranges::find(written, i) != written.end();
      expect(theirs_[i], 2 * i + 1, 2 * i, in ? blocks : std::span<const Block>());
      fill(theirs_[i], 2 * i + 1);
    }
  }
  static std::vector<Block> blocks_of(std::span<const std::uint32_t> ours,
                                      std::span<const std::uint32_t> there) {
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < ours.size(); ++i)
      blocks.push_back({ours[i] * kPage, there[i] * kPage, kPage});
    return blocks;
  }
  Result<Prepared> prepared(std::span<const TransferPart> parts) {
    return to_far_.prepare(Op::write, parts);
  }
};

TEST_P(PreparedPairs, ArePostedAsOneTransfer_AgainAndAgain) {
  add(20);
  std::vector<std::uint32_t> ours = {9, 3, 40}, there = {0, 77, 12};
  const std::vector<Block> blocks = blocks_of(ours, there);
  const Prepared pages =
      take(to_far_.prepare(Op::write, local_, remote_, Pages{kPage, 0, 0, ours, there}));
  EXPECT_EQ(pages.bytes(), 20 * 3 * kPage);
  ours = there = {1, 1, 1};  // prepare() has read them
  std::vector<std::size_t> all(20);
  std::iota(all.begin(), all.end(), 0);
  for (int i = 0; i < 3; ++i) {
    const Transfer moved =
        take(pages.post({.deadline = 10s, .notification = std::as_bytes(std::span("all", 3))}));
    EXPECT_EQ(moved.bytes(), 20 * 3 * kPage);
    EXPECT_EQ(far_.notifications(10s).size(), 1u);
    EXPECT_TRUE(is(moved.wait(10s), Code::ok));  // as in ManyPairs.MoveTheSamePages
    expect_written(all, blocks);
  }
  EXPECT_TRUE(far_.notifications().empty());
}

TEST_P(PreparedPairs, ArePostedInPart) {
  add(6);
  const std::vector<std::uint32_t> ours = {9, 3, 40}, there = {0, 77, 12}, positions = {2, 0};
  const Prepared pages =
      take(to_far_.prepare(Op::write, local_, remote_, Pages{kPage, 0, 0, ours, there}));
  const std::vector<Block> blocks = blocks_of(ours, there);
  const Block some[] = {blocks[2], blocks[0]};
  const Transfer few = take(pages.post(positions));
  must(few.wait(10s));
  EXPECT_EQ(few.bytes(), 6 * 2 * kPage);
  expect_written({0, 1, 2, 3, 4, 5}, some);
  std::vector<std::uint32_t> indices = {4, 1};
  // By TCP two threads might write pair 4 at once.
  if (GetParam() == std::string_view("local")) indices.push_back(4);
  const Transfer pairs = take(pages.post_pairs(indices));
  must(pairs.wait(10s));
  EXPECT_EQ(pairs.bytes(), indices.size() * 3 * kPage);
  expect_written({1, 4}, blocks);
  must(take(pages.post(std::span<const std::uint32_t>())).wait(10s));
  expect_written({}, {});
}

TEST_P(PreparedPairs, HaveShapesOfTheirOwn) {
  add(3);
  const Block first[] = {{1, 2, 1001}}, second[] = {{0, 0, 7}, {9, 4000, 40000}};
  const std::uint32_t ours[] = {3}, there[] = {1};
  const TransferPart parts[] = {{local_[0], remote_[0], first},
                                {local_[1], remote_[1], second},
                                {local_[2], remote_[2], Pages{kPage, 0, 0, ours, there}}};
  const Prepared all = take(prepared(parts));
  EXPECT_EQ(all.bytes(), 1001u + 40007 + kPage);
  must(take(all.post()).wait(10s));
  expect(theirs_[0], 1, 0, first);
  expect(theirs_[1], 3, 2, second);
  expect(theirs_[2], 5, 4, blocks_of(ours, there));
  const std::uint32_t position[] = {0};
  EXPECT_TRUE(is(all.post(position).status(), Code::invalid_argument,
                 "pair 0: a subset of what was prepared without page lists"));
}

TEST_P(PreparedPairs, TakePositions_WhenAllListsHaveOneLength) {
  add(2);
  const std::vector<std::uint32_t> up = {3, 4}, down = {9, 8}, longer = {1, 2, 3};
  const auto pages = [&](const std::vector<std::uint32_t>& list) {
    return Pages{kPage, 0, 0, list, list};
  };
  const TransferPart alike[] = {{local_[0], remote_[0], pages(up)},
                                {local_[1], remote_[1], pages(down)}};
  const std::uint32_t last[] = {1}, beyond[] = {0, 2};
  const Prepared both = take(prepared(alike));
  must(take(both.post(last)).wait(10s));
  const Block of_up[] = {{4 * kPage, 4 * kPage, kPage}},
              of_down[] = {{8 * kPage, 8 * kPage, kPage}};
  expect(theirs_[0], 1, 0, of_up);
  expect(theirs_[1], 3, 2, of_down);
  EXPECT_TRUE(is(both.post(beyond).status(), Code::invalid_argument,
                 "position 2 of 2 prepared pages, as number 1 of the subset"));
  const TransferPart unlike[] = {{local_[0], remote_[0], pages(up)},
                                 {local_[1], remote_[1], pages(longer)}};
  EXPECT_TRUE(is(take(prepared(unlike)).post(last).status(), Code::invalid_argument,
                 "pair 1: positions in 3 prepared pages, and in 2 of pair 0"));
}

TEST_P(PreparedPairs, StoreTheListsOnce_WhenTheyHaveOneShape) {
  add(3);
  const Submission& submission = test::impl_of(near_).services().submission;
  const std::uint32_t list[] = {1, 2, 3};
  const Shape shape = Pages{kPage, 0, 0, list, list};
  const Submission::Pair pairs[] = {{local_[0], remote_[0], shape},
                                    {local_[1], remote_[1], shape},
                                    {local_[2], remote_[2], shape}};
  const auto state = take(submission.prepare(to_far_.id(), Op::write, pairs));
  ASSERT_EQ(state->shapes.size(), 1u);
  EXPECT_LE(state->shapes.front().kept.size(), 1u);
  const std::uint32_t* const stored = state->shapes.front().lists.data();
  for (const PreparedPair& each : state->pairs) {
    EXPECT_EQ(each.copied.plan, &state->plans.front());
    EXPECT_EQ(each.copied.plan->pages.local_index.data(), stored);
    EXPECT_TRUE(each.copied.plan->kept.empty());
    EXPECT_EQ(each.local, nullptr);
  }
}

TEST_P(PreparedPairs, OfWhichOneIsWrongAreNamed) {
  add(3);
  const Block all[] = {{0, 0, kBytes}}, beyond[] = {{1, 0, kBytes}};
  const TransferPart late[] = {{local_[0], remote_[0], all}, {local_[2], remote_[2], beyond}};
  EXPECT_TRUE(is(prepared(late).status(), Code::invalid_argument, "pair 1: "));
  const TransferPart none[] = {{local_[0], remote_[0], all}, {local_[1], {}, all}};
  EXPECT_TRUE(is(prepared(none).status(), Code::invalid_argument, "pair 1: no remote region"));
  const auto read_only = share("read only", kBytes, {.read = true});
  const TransferPart denied[] = {{local_[1], remote_[1], all}, {local_[0], read_only.second, all}};
  EXPECT_TRUE(is(prepared(denied).status(), Code::permission_denied,
                 "pair 1: the peer does not permit to write to \"read only\""));
  const std::uint32_t list[] = {0};
  const TransferPart on_gpu[] = {
      {local_[0], remote_[0], all},
      {local_[1], remote_[1],
       Pages{.page_bytes = 1, .local_index = list, .remote_index = list, .indices_on_gpu = true}}};
  EXPECT_TRUE(is(prepared(on_gpu).status(), Code::unsupported,
                 "pair 1: page indices on a GPU are not prepared"));
  const auto smaller = share("smaller", kBytes - 1);
  const RemoteRegion remote[] = {remote_[0], smaller.second, remote_[2]};
  EXPECT_TRUE(is(to_far_.prepare(Op::write, local_, remote, all).status(), Code::invalid_argument,
                 "pair 1: "));
  EXPECT_TRUE(is(prepared({}).status(), Code::invalid_argument, "no pair of regions"));
  EXPECT_TRUE(is(to_far_.prepare(Op::write, std::span(local_).first(2), remote_, all).status(),
                 Code::invalid_argument, "2 local regions and 3 of the peer"));

  const Prepared good = take(to_far_.prepare(Op::write, local_, remote_, all));
  const std::uint32_t indices[] = {2, 0, 3};
  EXPECT_TRUE(is(good.post_pairs(indices).status(), Code::invalid_argument,
                 "index 3 of 3 prepared pairs, as number 2 of the list"));
  EXPECT_TRUE(is(good.post_pairs({}).status(), Code::invalid_argument, "no pair of regions"));
  const std::vector<std::uint32_t> many(65537);
  EXPECT_TRUE(is(good.post_pairs(many).status(), Code::invalid_argument,
                 "65537 pairs of regions in one transfer; at most 65536"));
  const std::string path = take(to_far_.explain(Op::write, local_[0], remote_[0], 1, kBytes)).path;
  EXPECT_TRUE(is(good.post({.require = "!" + path}).status(), Code::unsupported, "pair 0: path"));
  for (std::size_t i = 0; i < 3; ++i) expect(theirs_[i], 2 * i + 1, 0, {});
  must(take(good.post({.require = path})).wait(10s));
}

TEST_P(PreparedPairs, NameTheRegionThatIsGone_AndPostTheOthers) {
  add(3);
  const Block all[] = {{0, 0, kBytes}};
  const Prepared pairs = take(to_far_.prepare(Op::write, local_, remote_, all));
  must(take(pairs.post()).wait(10s));
  expect_written({0, 1, 2}, all);
  must(near_.deregister(local_[1], 10s));
  EXPECT_TRUE(is(pairs.post().status(), Code::invalid_argument,
                 "pair 1: the local region is not registered"));
  const std::uint32_t gone[] = {2, 1}, left[] = {2, 0}, position[] = {0};
  EXPECT_TRUE(is(pairs.post_pairs(gone).status(), Code::invalid_argument, "pair 1: "));
  EXPECT_TRUE(is(pairs.post(position).status(), Code::invalid_argument));
  expect_written({}, {});
  must(take(pairs.post_pairs(left)).wait(10s));
  expect_written({0, 2}, all);
  must(near_.deregister(local_[0], 10s));
  must(near_.deregister(local_[2], 10s));
}

TEST_P(PreparedPairs, MapTheRegionsOfThePeer_UntilTheyAreDropped) {
  add(2);
  const Block all[] = {{0, 0, kBytes}};
  Prepared pairs = take(to_far_.prepare(Op::write, local_, remote_, all));
  remote_.clear();
  Transfer moved = take(pairs.post());
  pairs = {};
  must(moved.wait(10s));
  expect_written({0, 1}, all);
  for (const Region& each : theirs_) must(far_.deregister(each, 10s));
}

TEST_P(PreparedPairs, AnswerAsTheirPeerDoes_OnceItIsClosed) {
  add(2);
  const Block all[] = {{0, 0, kBytes}};
  const Prepared pairs = take(to_far_.prepare(Op::write, local_, remote_, all));
  must(to_far_.close());
  const std::uint32_t first[] = {0};
  EXPECT_TRUE(is(pairs.post().status(), Code::disconnected));
  EXPECT_TRUE(is(pairs.post_pairs(first).status(), Code::disconnected));
  EXPECT_TRUE(is(Prepared().post_pairs(first).status(), Code::invalid_argument));
  for (const Region& each : local_) must(near_.deregister(each, 10s));
}

INSTANTIATE_TEST_SUITE_P(By, PreparedPairs, ::testing::Values("", "tcp:127.0.0.1:0"),
                         [](const auto& param) { return *param.param == 0 ? "local" : "tcp"; });

}  // namespace submission_prepared_test
}  // namespace linkspan::engine
