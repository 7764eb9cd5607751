// Tests a TransferState's status for the user, its hints, and which paths a user has required.
#include "engine/transfers/transfer.hpp"

#include <gtest/gtest.h>

namespace linkspan::engine {
namespace transfer_test {

Status status_of(Code code) { return {code, Scope::peer, "the low-level text"}; }

TEST(Transfer, KeepsItsStatus_WhenItWasNotAskedToEnd) {
  const TransferState transfer;
  EXPECT_TRUE(transfer.ending.user_status({}).ok());
  EXPECT_EQ(transfer.ending.user_status(status_of(Code::corrupt)).code(), Code::corrupt);
  EXPECT_EQ(transfer.ending.user_status(status_of(Code::canceled)).code(), Code::canceled);
}

TEST(Transfer, EndsAsCanceledWithTheLowLevelText_WhenItWasCanceled) {
  TransferState transfer;
  transfer.ending.canceled = true;
  const Status status = transfer.ending.user_status(status_of(Code::unreachable));
  EXPECT_EQ(status.code(), Code::canceled);
  EXPECT_EQ(status.scope(), Scope::request);
  EXPECT_EQ(status.what(), "canceled by its owner; the low-level text");
  const Status bare = transfer.ending.user_status(Status(Code::canceled, Scope::request, ""));
  EXPECT_EQ(bare.what(), "canceled by its owner");
}

TEST(Transfer, EndsAsTimedOut_WhenItsDeadlineHasPassed) {
  TransferState transfer;
  transfer.ending.expired = true;
  EXPECT_EQ(transfer.ending.user_status(status_of(Code::canceled)).code(), Code::timed_out);
  transfer.ending.canceled = true;
  const Status both = transfer.ending.user_status(status_of(Code::canceled));
  EXPECT_EQ(both.code(), Code::timed_out);
  EXPECT_EQ(both.what(), "its deadline passed; the low-level text");
}

TEST(Transfer, EndsWell_WhenItCompletedThoughItWasAskedToEnd) {
  TransferState transfer;
  transfer.ending.canceled = transfer.ending.expired = true;
  EXPECT_TRUE(transfer.ending.user_status({}).ok());
}

TEST(Transfer, StaysDisconnected_WhenItWasAskedToEnd) {
  TransferState transfer;
  transfer.ending.canceled = true;
  EXPECT_EQ(transfer.ending.user_status(status_of(Code::disconnected)).code(), Code::disconnected);
}

TEST(Transfer, UsesTheSharedPlan_WhenItHasOne) {
  TransferState transfer;
  EXPECT_EQ(&transfer.batches.plan(), &transfer.batches.own);
  transfer.batches.shared = std::make_shared<Plan>();
  EXPECT_EQ(&transfer.batches.plan(), transfer.batches.shared.get());
}

TEST(Transfer, PostsThePairsInTheOrderInWhichTheyWereAdded) {
  struct Kept final : transport::KeptPages {};
  const Kept lists{};
  const auto plan = std::make_shared<Plan>();
  PlannedPair pair;
  pair.peer = 7;
  pair.transport = 1;
  pair.plan = plan;
  pair.kept = &lists;
  TransferState transfer;
  EXPECT_EQ(&transfer.add(pair), &transfer);
  pair.transport = 2;
  pair.kept = nullptr;
  const TransferEndpoints& second = transfer.add(pair);
  EXPECT_EQ(transfer.peer, 7u);
  ASSERT_EQ(transfer.batches.more.size(), 1u);
  const auto first = transfer.next_batch();
  EXPECT_EQ(&first.between, &transfer);
  EXPECT_EQ(&first.plan, plan.get());
  EXPECT_EQ(first.kept, &lists);
  transfer.count_posted(0);
  const auto next = transfer.next_batch();
  EXPECT_EQ(&next.between, &second);
  EXPECT_EQ(next.between.transport, 2u);
  EXPECT_EQ(&next.plan, plan.get());
  EXPECT_EQ(next.kept, nullptr);
}

TEST(Transfer, HasPostedAll_WhenNoBatchIsLeft) {
  TransferState transfer;
  transfer.batches.count = 2;
  transfer.batches.posted = 1;
  EXPECT_FALSE(transfer.batches.all_posted());
  transfer.batches.posted = 2;
  EXPECT_TRUE(transfer.batches.all_posted());
}

TEST(HintsOf, PassTheOptionsOn) {
  TransferOptions options;
  EXPECT_FALSE(hints_of(options).low_latency);
  EXPECT_FALSE(hints_of(options).checksum);
  EXPECT_EQ(hints_of(options).ctas, ~0u) << "no limit";
  options.low_latency = options.checksum = true;
  options.copy_ctas = 0;
  EXPECT_TRUE(hints_of(options).low_latency);
  EXPECT_TRUE(hints_of(options).checksum);
  EXPECT_EQ(hints_of(options).ctas, 0u);
}

TEST(HintsOf, AskForNoLowLatency_InAStreamOfTheUser) {
  for (StreamOrder TransferOptions::*const order :
       {&TransferOptions::after, &TransferOptions::release}) {
    TransferOptions options;
    options.low_latency = true;
    (options.*order).kind = StreamOrder::Kind::legacy_default;
    EXPECT_FALSE(hints_of(options).low_latency);
  }
}

TEST(Satisfies, ComparesTheBeginOfThePath) {
  EXPECT_TRUE(satisfies("cuda_ipc+kernel", false, ""));
  EXPECT_TRUE(satisfies("cuda_ipc+kernel", false, "cuda_ipc"));
  EXPECT_TRUE(satisfies("cuda_ipc+kernel", false, "cuda_ipc+kernel"));
  EXPECT_FALSE(satisfies("cuda_ipc+kernel", false, "tcp"));
  EXPECT_FALSE(satisfies("tcp", true, "tcp+kernel"));
}

TEST(Satisfies, AllowsAllButThePath_AfterAnExclamationMark) {
  EXPECT_FALSE(satisfies("tcp", true, "!tcp"));
  EXPECT_TRUE(satisfies("cuda_ipc+kernel", false, "!tcp"));
}

TEST(Satisfies, TakesLocalForAllThatStaysOnTheHost) {
  EXPECT_TRUE(satisfies("cuda_ipc+kernel", false, "local"));
  EXPECT_FALSE(satisfies("tcp", true, "local"));
  EXPECT_TRUE(satisfies("", true, "local")) << "nothing is copied";
  EXPECT_TRUE(satisfies("tcp", true, "!local"));
  EXPECT_FALSE(satisfies("cuda_ipc+kernel", false, "!local"));
}

}  // namespace transfer_test
}  // namespace linkspan::engine
