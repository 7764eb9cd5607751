// Tests a TransferState's status for the user, its pairs, its hints, and which paths a user has
// required.
#include "engine/transfers/transfer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/unit/engine_fixture.hpp"

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

TEST(Transfer, HasOnePlanForAllPairs_OrOneForEach) {
  struct Kept final : transport::KeptPages {};
  const Kept lists{};
  const Plan prepared, other;
  TransferBatches batches;
  batches.own.batches = 2;
  EXPECT_EQ(batches.of_pair(0).plan, &batches.own);
  EXPECT_EQ(batches.of_pair(5).plan, &batches.own);
  batches.count_all(3);
  EXPECT_EQ(batches.count, 6u);
  batches.common = {.plan = &prepared, .kept = &lists};
  EXPECT_EQ(batches.of_pair(5).plan, &prepared);
  EXPECT_EQ(batches.of_pair(5).kept, &lists);
  batches.by_pair = {{.plan = &batches.own}, {.plan = &other}};
  EXPECT_EQ(batches.of_pair(0).plan, &batches.own);
  EXPECT_EQ(batches.of_pair(1).plan, &other);
  batches.count_all(2);
  EXPECT_EQ(batches.count, 2 + other.batches);
}

TEST(Transfer, HasPostedAll_WhenNoBatchIsLeft) {
  TransferState transfer;
  transfer.batches.count = 2;
  transfer.batches.posted = 1;
  EXPECT_FALSE(transfer.batches.all_posted());
  transfer.batches.posted = 2;
  EXPECT_TRUE(transfer.batches.all_posted());
}

TEST(PairsAfterNext, TellWhichGetTheSamePages_AndThePagesOfThoseThatGetOthers) {
  std::vector<std::byte> bytes(16);
  memory::Registry registry(1, nullptr);
  const std::vector<std::uint32_t> list = {0, 1};
  const auto plan_of = [&](bool on_gpu) {
    Plan plan;
    plan.pages = {4, 0, 0, list, list, on_gpu};
    plan.checked = true;
    return plan;
  };
  const Plan first = plan_of(false), other = plan_of(false), on_gpu = plan_of(true);
  TransferState transfer;
  std::vector<TransferEndpoints> pairs;
  for (int i = 0; i < 5; ++i)
    pairs.push_back({.peer = 1,
                     .local = test::take(registry.add(bytes.data(), bytes.size(), {}, false)),
                     .remote = test::FakeMemory::remote([] {})});
  transfer.use(AcquiredPairs::make(pairs));
  for (const Plan* const plan : {&first, &first, &other, &other, &on_gpu})
    transfer.batches.by_pair.push_back({.plan = plan});
  {
    const PairsAfterNext more(transfer);
    EXPECT_EQ(more.alike(10), 1u);
    EXPECT_EQ(more.alike(0), 0u);
    EXPECT_EQ(more.pages(0), &first.pages);
    EXPECT_EQ(more.pages(2), &other.pages);
    EXPECT_EQ(more.pages(3), nullptr) << "only a kernel reads its lists";
    EXPECT_EQ(more.pages(4), nullptr) << "there is none";
    EXPECT_EQ(more.at(1).local, &pairs[2].local->region());
    EXPECT_EQ(more.place(), PairsAfterNext(transfer).place());
    EXPECT_EQ(more.place().first, 1u);
  }
  transfer.count_posted(1);
  const PairsAfterNext later(transfer);
  EXPECT_EQ(later.alike(10), 1u);
  EXPECT_EQ(later.pages(0), &other.pages);
  EXPECT_EQ(later.at(1).local, &pairs[4].local->region());
  EXPECT_EQ(later.place().first, 3u);
  TransferState another;
  another.use(AcquiredPairs::make(pairs));
  EXPECT_NE(another.pairs->number(), transfer.pairs->number());
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

TEST(TransferBatches, KeepTheListsOfEachPlan) {
  std::vector<std::uint32_t> list = {4, 2, 9};
  const Pages pages{.page_bytes = 8, .local_index = list, .remote_index = list};
  const Plan plan =
      make_plan(pages, {.max_batch_bytes = 64, .max_batch_blocks = 8, .max_batch_pages = 8});
  TransferBatches batches;
  batches.own = plan;
  batches.others = {plan, plan};
  batches.keep();
  std::ranges::fill(list, 100);
  for (const Plan* kept : {&batches.own, &batches.others.front(), &batches.others.back()}) {
    EXPECT_EQ(std::vector(kept->pages.local_index.begin(), kept->pages.local_index.end()),
              (std::vector<std::uint32_t>{4, 2, 9}));
    EXPECT_EQ(kept->pages.remote_index.front(), 4u);
  }
}

}  // namespace transfer_test
}  // namespace linkspan::engine
