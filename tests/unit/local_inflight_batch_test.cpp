// LocalCopy and LocalInflightBatch: the pieces of an order, the user's index lists, addresses.
#include <gtest/gtest.h>

#include <numeric>

#include "transport/local/inflight_batch.hpp"

namespace linkspan::transport::local {
namespace local_inflight_batch_test {

LocalCopy of_pieces(copy::Method method, std::size_t pieces) {
  LocalCopy copy;
  copy.method = method;
  for (std::size_t i = 0; i < pieces; ++i) copy.pieces.push_back({i, 0, 1});
  return copy;
}

TEST(LocalCopy, GivesAGpuAsManyPiecesAsCanStillBeCanceled_AndACpuAll) {
  EXPECT_EQ(of_pieces(copy::Method::copy_engine, 300).next_pieces().size(), 128u);
  EXPECT_EQ(of_pieces(copy::Method::sm_kernel, 10000).next_pieces().size(), 8192u);
  EXPECT_EQ(of_pieces(copy::Method::cpu_threads, 10000).next_pieces().size(), 10000u);
  EXPECT_EQ(of_pieces(copy::Method::copy_engine, 3).next_pieces().size(), 3u);
}

TEST(LocalCopy, GoesOnBehindThePiecesThatTheCopierHas) {
  LocalCopy copy = of_pieces(copy::Method::copy_engine, 130);
  copy.started(7, copy.next_pieces().size());
  EXPECT_EQ(copy.ticket, 7u);
  EXPECT_EQ(copy.blocks_with_copier, 128u);
  ASSERT_TRUE(copy.left());
  ASSERT_EQ(copy.next_pieces().size(), 2u);
  EXPECT_EQ(copy.next_pieces().front().to, 128u);
  copy.started(8, 2);
  EXPECT_FALSE(copy.left());
}

TEST(LocalCopy, CountsThePagesOfEachPair_AndHasNoneLeftOnceTheyAreStarted) {
  const std::vector<std::uint32_t> indices = {4, 2, 9};
  LocalCopy copy;
  copy.method = copy::Method::sm_kernel;
  copy.more.resize(5);
  copy.pages = {.to_index = indices, .from_index = indices, .more = copy.more};
  ASSERT_TRUE(copy.left());
  copy.started(1, 0);
  EXPECT_EQ(copy.blocks_with_copier, 3u * 6u);
  EXPECT_FALSE(copy.left());
}

TEST(LocalCopy, KeepsTheUsersIndices_UnlessTheyLieWhereTheKernelReadsThem) {
  std::vector<std::uint32_t> to = {4, 2, 9}, from = {1, 0, 3};
  LocalCopy copy;
  copy.pages = {.to_index = to, .from_index = from};
  copy.keep_indices();
  std::iota(to.begin(), to.end(), 100);
  std::iota(from.begin(), from.end(), 200);
  EXPECT_EQ(std::vector(copy.pages.to_index.begin(), copy.pages.to_index.end()),
            (std::vector<std::uint32_t>{4, 2, 9}));
  EXPECT_EQ(std::vector(copy.pages.from_index.begin(), copy.pages.from_index.end()),
            (std::vector<std::uint32_t>{1, 0, 3}));
  copy.pages = {.to_index = to, .from_index = from, .to_list = 4096};
  copy.keep_indices();
  EXPECT_EQ(copy.pages.to_index.data(), to.data());
}

TEST(LocalCopy, KeepsTheListsOfEachPair) {
  std::vector<std::uint32_t> lists = {4, 2, 9, 1, 0, 3, 7, 8, 5, 6, 2, 1};
  LocalCopy copy;
  copy.more = {{.bases = {}, .to_index = &lists[6], .from_index = &lists[9]}};
  copy.pages = {.to_index = {&lists[0], 3}, .from_index = {&lists[3], 3}, .more = copy.more};
  ASSERT_EQ(copy.pages.lists(), 2u);
  copy.keep_indices();
  std::ranges::fill(lists, 100);
  using List = std::vector<std::uint32_t>;
  EXPECT_EQ(List(copy.pages.to_index.begin(), copy.pages.to_index.end()), (List{4, 2, 9}));
  EXPECT_EQ(List(copy.pages.from_index.begin(), copy.pages.from_index.end()), (List{1, 0, 3}));
  EXPECT_EQ(List(copy.more[0].to_index, copy.more[0].to_index + 3), (List{7, 8, 5}));
  EXPECT_EQ(List(copy.more[0].from_index, copy.more[0].from_index + 3), (List{6, 2, 1}));
}

TEST(LocalInflightBatch, TurnsOffsetsIntoAddresses_InTheDirectionOfItsOp) {
  const Block block{.local_offset = 3, .remote_offset = 50, .bytes = 8};
  for (const Op op : {Op::write, Op::read}) {
    LocalInflightBatch batch;
    batch.op = op;
    batch.place(1000, 2000, std::span(&block, 1));
    ASSERT_EQ(batch.local_copy.pieces.size(), 1u);
    const copy::Piece& piece = batch.local_copy.pieces.front();
    EXPECT_EQ(piece.to, op == Op::write ? 2050u : 1003u);
    EXPECT_EQ(piece.from, op == Op::write ? 1003u : 2050u);
    EXPECT_EQ(piece.bytes, 8u);
  }
}

TEST(LocalInflightBatch, WaitsForThePeer_UnlessACancelIsToBeSent) {
  LocalInflightBatch batch;
  EXPECT_FALSE(batch.waits_for_peer());
  batch.state = BatchState::requested;
  EXPECT_TRUE(batch.waits_for_peer());
  batch.cancel();
  EXPECT_FALSE(batch.waits_for_peer());
  batch.request.cancel_sent = true;
  EXPECT_TRUE(batch.waits_for_peer());
}

}  // namespace local_inflight_batch_test
}  // namespace linkspan::transport::local
