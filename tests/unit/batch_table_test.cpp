// Tests a BatchTable: its cookies, and the order and memory of Completions.
#include "engine/transfers/batch_table.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/transfers/transfer.hpp"
#include "tests/support/no_memory.hpp"

namespace linkspan::engine {
namespace batch_table_test {

class BatchTableTest : public ::testing::Test {
 protected:
  using Handled = std::vector<std::pair<TransferState*, std::string>>;
  /// Returns what handle() has reported.
  Handled handle() {
    Handled all;
    table_.handle([&](TransferState& transfer, const Status& status) {
      all.emplace_back(&transfer, name_of(status.code()));
    });
    return all;
  }
  std::vector<std::uint64_t> batches_of(const TransferState& transfer) {
    std::vector<std::uint64_t> cookies;
    table_.for_each_of(transfer, [&](std::uint64_t cookie) { cookies.push_back(cookie); });
    return cookies;
  }

  BatchTable table_;
  TransferState first_, second_;
};

TEST_F(BatchTableTest, ReportsEachCompletionOnceInTheirOrder) {
  const auto a = table_.add(first_), b = table_.add(second_), c = table_.add(first_);
  table_.complete({c, {}});
  table_.complete({b, {Code::corrupt, Scope::request, "a sum differs"}});
  EXPECT_EQ(handle(), (Handled{{&first_, "ok"}, {&second_, "corrupt"}}));
  EXPECT_EQ(handle(), Handled{});
  table_.complete({a, {}});
  EXPECT_EQ(handle(), (Handled{{&first_, "ok"}}));
}

TEST_F(BatchTableTest, IgnoresACompletion_OfABatchThatIsNotInFlight) {
  const auto refused = table_.add(first_);
  table_.remove(refused);
  table_.complete({refused, {}});
  table_.complete({12345, {}});
  EXPECT_EQ(handle(), Handled{});
  const auto again = table_.add(second_);
  EXPECT_NE(again, refused) << "a late Completion of the old batch would end the new one";
  table_.complete({refused, {}});
  EXPECT_EQ(handle(), Handled{});
  table_.complete({again, {}});
  table_.complete({again, {}});
  EXPECT_EQ(handle().size(), 1u);
}

TEST_F(BatchTableTest, ListsTheBatchesOfOneTransfer) {
  const auto a = table_.add(first_);
  table_.add(second_);
  const auto c = table_.add(first_);
  EXPECT_EQ(batches_of(first_), (std::vector{a, c}));
  table_.complete({a, {}});
  (void)handle();
  EXPECT_EQ(batches_of(first_), std::vector{c});
}

TEST_F(BatchTableTest, AllocatesNothingForACompletion_WhenEachBatchOfManyCompletes) {
  constexpr std::size_t kBatches = 1000;
  std::vector<std::uint64_t> cookies;
  for (std::size_t i = 0; i < kBatches; ++i) cookies.push_back(table_.add(first_));
  std::size_t handled = 0;
  test::fail_each_allocation(
      [&] {
        for (const std::uint64_t cookie : std::exchange(cookies, {})) table_.complete({cookie, {}});
        table_.handle([&](TransferState&, const Status&) { ++handled; });
      },
      [](bool threw) { EXPECT_FALSE(threw) << "a Completion was lost"; });
  EXPECT_EQ(handled, kBatches);
}

}  // namespace batch_table_test
}  // namespace linkspan::engine
