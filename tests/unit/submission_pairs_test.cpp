// Tests transfers between several pairs of regions.
#include <numeric>

#include "tests/unit/many_pairs.hpp"

namespace linkspan::engine {
namespace submission_pairs_test {

using namespace std::chrono_literals;
using test::is, test::must, test::take;

constexpr std::uint64_t kPage = 512;

class ManyPairs : public test::ManyPairs {};

TEST_P(ManyPairs, MoveTheSamePages_AndNotifyBehindAll) {
  add(60);
  std::vector<std::uint32_t> ours(67), there(67);
  std::iota(ours.begin(), ours.end(), 3);
  std::iota(there.rbegin(), there.rend(), 20);
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < ours.size(); ++i)
    blocks.push_back({ours[i] * kPage, there[i] * kPage, kPage});
  const Transfer moved =
      take(to_far_.write(local_, remote_, Pages{kPage, 0, 0, ours, there},
                         {.deadline = 10s, .notification = std::as_bytes(std::span("all", 3))}));
  EXPECT_EQ(moved.bytes(), 60 * 67 * kPage);
  const auto came = far_.notifications(10s);
  ASSERT_EQ(came.size(), 1u);
  // ThreadSanitizer does not know that both mappings of the notification's ring are one memory.
  EXPECT_TRUE(is(moved.wait(10s), Code::ok));
  for (std::size_t i = 0; i < local_.size(); ++i) expect(theirs_[i], 2 * i + 1, 2 * i, blocks);
  EXPECT_TRUE(far_.notifications().empty());

  for (std::size_t i = 0; i < local_.size(); ++i) fill(theirs_[i], 2 * i + 1);
  for (Block& each : blocks) std::swap(each.local_offset, each.remote_offset);
  must(take(to_far_.read(local_, remote_, Pages{kPage, 0, 0, ours, there})).wait(10s));
  for (std::size_t i = 0; i < local_.size(); ++i) expect(local_[i], 2 * i, 2 * i + 1, blocks);
}

TEST_P(ManyPairs, HaveShapesOfTheirOwn) {
  add(3);
  const Block first[] = {{1, 2, 1001}}, second[] = {{0, 0, 7}, {9, 4000, 40000}};
  const Strides third{.bytes = 3,
                      .local_base = 5,
                      .remote_base = 1,
                      .levels = {{{.count = 4, .local_step = 100, .remote_step = 200}}}};
  const TransferPart parts[] = {{local_[0], remote_[2], first},
                                {local_[1], remote_[0], second},
                                {local_[1], remote_[1], third}};
  const Transfer moved = take(to_far_.write(parts));
  must(moved.wait(10s));
  EXPECT_EQ(moved.bytes(), 1001u + 40007 + 12);
  expect(theirs_[2], 5, 0, first);
  expect(theirs_[0], 1, 2, second);
  std::vector<Block> blocks;
  for (std::uint64_t i = 0; i < 4; ++i) blocks.push_back({5 + 100 * i, 1 + 200 * i, 3});
  expect(theirs_[1], 3, 2, blocks);
}

TEST_P(ManyPairs, OfTwoSetsHaveShapesOfTheirOwn) {
  add(2);
  const Block first[] = {{1, 2, 1001}}, second[] = {{0, 0, 7}, {9, 4000, 40000}};
  const Shape shapes[] = {first, second};
  must(take(to_far_.write(local_, remote_, shapes)).wait(10s));
  const auto written = [&] {
    expect(theirs_[0], 1, 0, first);
    expect(theirs_[1], 3, 2, second);
  };
  written();
  for (std::size_t i = 0; i < 2; ++i) fill(theirs_[i], 2 * i + 1);
  must(take(take(to_far_.prepare(Op::write, local_, remote_, shapes)).post()).wait(10s));
  written();
  for (std::size_t i = 0; i < 2; ++i) fill(theirs_[i], 2 * i + 1);
  must(take(to_far_.read(local_, remote_, shapes)).wait(10s));
  const Block first_back[] = {{2, 1, 1001}}, second_back[] = {{0, 0, 7}, {4000, 9, 40000}};
  expect(local_[0], 0, 1, first_back);
  expect(local_[1], 2, 3, second_back);
  for (const std::size_t given : {std::size_t{1}, std::size_t{0}})
    EXPECT_TRUE(is(to_far_.write(local_, remote_, std::span(shapes).first(given)).status(),
                   Code::invalid_argument,
                   "2 local regions, 2 of the peer and " + std::to_string(given) + " shapes"));
}

TEST_P(ManyPairs, OfWhichOneIsWrongMoveNothing) {
  add(3);
  const Block all[] = {{0, 0, kBytes}}, beyond[] = {{1, 0, kBytes}};
  const auto refused = [&](std::span<const TransferPart> parts) {
    return to_far_.write(parts).status();
  };
  const TransferPart late[] = {
      {local_[0], remote_[0], all}, {local_[1], remote_[1], all}, {local_[2], remote_[2], beyond}};
  EXPECT_TRUE(is(refused(late), Code::invalid_argument, "pair 2: "));
  const TransferPart none[] = {{local_[0], remote_[0], all}, {local_[1], {}, all}};
  EXPECT_TRUE(is(refused(none), Code::invalid_argument, "pair 1: no remote region"));
  const auto read_only = share("read only", kBytes, {.read = true});
  const TransferPart denied[] = {{local_[0], read_only.second, all}, {local_[1], remote_[1], all}};
  EXPECT_TRUE(is(refused(denied), Code::permission_denied, "pair 0: "));
  const TransferPart late_denied[] = {{local_[1], remote_[1], all},
                                      {local_[0], read_only.second, all}};
  EXPECT_TRUE(is(refused(late_denied), Code::permission_denied,
                 "pair 1: the peer does not permit to write to \"read only\""));
  const auto smaller = share("smaller", kBytes - 1);
  const RemoteRegion remote[] = {remote_[0], smaller.second, remote_[2]};
  EXPECT_TRUE(is(to_far_.write(local_, remote, all).status(), Code::invalid_argument, "pair 1: "));
  const TransferPart late_smaller[] = {
      {local_[0], remote_[0], all}, {local_[1], smaller.second, all}, {local_[0], remote_[0], {}}};
  EXPECT_TRUE(is(refused(late_smaller), Code::invalid_argument, "pair 1: "));
  EXPECT_TRUE(is(refused({}), Code::invalid_argument, "no pair of regions"));
  EXPECT_TRUE(is(to_far_.write(std::span(local_).first(2), remote_, all).status(),
                 Code::invalid_argument, "2 local regions and 3 of the peer"));
  for (std::size_t i = 0; i < 3; ++i) expect(theirs_[i], 2 * i + 1, 0, {});
  for (const Region& each : local_) must(near_.deregister(each, 10s));
}

/// A pair without bytes takes no path.
TEST_P(ManyPairs, AreCountedByThePathOfTheirBytes) {
  add(2);
  const Block all[] = {{0, 0, kBytes}}, none[] = {{5, 7, 0}};
  const std::string path = take(to_far_.explain(Op::write, local_[0], remote_[0], 1, kBytes)).path;
  const TransferPart parts[] = {{local_[0], remote_[0], all}, {local_[1], remote_[1], none}};
  must(take(to_far_.write(parts)).wait(10s));
  expect(theirs_[0], 1, 0, all);
  expect(theirs_[1], 3, 0, {});
  EXPECT_TRUE(test::contains(near_.metrics(), "path=\"" + path + "\"")) << near_.metrics();
  EXPECT_FALSE(test::contains(near_.metrics(), "path=\"by_peer\"")) << near_.metrics();
}

TEST_P(ManyPairs, KeepNoRegion_OnceTheyAreQuiet) {
  add(2);
  const Block all[] = {{0, 0, kBytes}};
  must(take(to_far_.write(local_, remote_, all)).wait(10s));
  remote_.clear();
  for (const Region& each : theirs_) must(far_.deregister(each, 10s));
  const Region gone = local_[1];
  must(near_.deregister(gone, 10s));
  EXPECT_TRUE(is(to_far_.write(local_, remote_, all).status(), Code::invalid_argument));
}

TEST_P(ManyPairs, LetALocalRegionGo_WhileTheUserKeepsTheImports) {
  add(2);
  const Block all[] = {{0, 0, kBytes}};
  must(take(to_far_.write(local_, remote_, all)).wait(10s));
  must(near_.deregister(local_[1], 10s));
  EXPECT_TRUE(is(to_far_.write(local_, remote_, all).status(), Code::invalid_argument, "pair 1: "));
  local_.pop_back();
  remote_.pop_back();
  must(take(to_far_.write(local_, remote_, all)).wait(10s));
}

INSTANTIATE_TEST_SUITE_P(By, ManyPairs, ::testing::Values("", "tcp:127.0.0.1:0"),
                         [](const auto& param) { return *param.param == 0 ? "local" : "tcp"; });

}  // namespace submission_pairs_test
}  // namespace linkspan::engine
