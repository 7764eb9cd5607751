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
    table_.handle([&](const PostedBatch& batch, const transport::Completion& completion) {
      all.emplace_back(batch.of, name_of(completion.status.code()));
    });
    return all;
  }
  using Posted = std::vector<std::pair<std::uint64_t, std::size_t>>;  // cookie, transport
  Posted batches_of(const TransferState& transfer) {
    Posted posted;
    table_.for_each_of(transfer, [&](std::uint64_t cookie, std::size_t transport) {
      posted.emplace_back(cookie, transport);
    });
    return posted;
  }

  BatchTable table_;
  TransferState first_, second_;
};

TEST_F(BatchTableTest, ReportsEachCompletionOnceInTheirOrder) {
  const auto a = table_.add(first_, 0, 0), b = table_.add(second_, 0, 0),
             c = table_.add(first_, 0, 0);
  table_.complete({c, {}});
  table_.complete({b, {Code::corrupt, Scope::request, "a sum differs"}});
  EXPECT_EQ(handle(), (Handled{{&first_, "ok"}, {&second_, "corrupt"}}));
  EXPECT_EQ(handle(), Handled{});
  table_.complete({a, {}});
  EXPECT_EQ(handle(), (Handled{{&first_, "ok"}}));
}

TEST_F(BatchTableTest, IgnoresACompletion_OfABatchThatIsNotInFlight) {
  const auto refused = table_.add(first_, 0, 0);
  table_.remove(refused);
  table_.complete({refused, {}});
  table_.complete({12345, {}});
  EXPECT_EQ(handle(), Handled{});
  const auto again = table_.add(second_, 0, 0);
  EXPECT_NE(again, refused) << "a late Completion of the old batch would end the new one";
  table_.complete({refused, {}});
  EXPECT_EQ(handle(), Handled{});
  table_.complete({again, {}});
  table_.complete({again, {}});
  EXPECT_EQ(handle().size(), 1u);
}

TEST_F(BatchTableTest, ListsTheBatchesOfOneTransfer_WithTheTransportOfEach) {
  const auto a = table_.add(first_, 0, 0);
  table_.add(second_, 0, 0);
  const auto c = table_.add(first_, 2, 0);
  EXPECT_EQ(batches_of(first_), (Posted{{a, 0}, {c, 2}}));
  table_.complete({a, {}});
  (void)handle();
  EXPECT_EQ(batches_of(first_), (Posted{{c, 2}}));
}

TEST_F(BatchTableTest, AllocatesNothingForACompletion_WhenEachBatchOfManyCompletes) {
  constexpr std::size_t kBatches = 1000;
  std::vector<std::uint64_t> cookies;
  for (std::size_t i = 0; i < kBatches; ++i) cookies.push_back(table_.add(first_, 0, 0));
  std::size_t handled = 0;
  test::fail_each_allocation(
      [&] {
        for (const std::uint64_t cookie : std::exchange(cookies, {})) table_.complete({cookie, {}});
        table_.handle([&](const PostedBatch&, const transport::Completion&) { ++handled; });
      },
      [](bool threw) { EXPECT_FALSE(threw) << "a Completion was lost"; });
  EXPECT_EQ(handled, kBatches);
}

}  // namespace batch_table_test
}  // namespace linkspan::engine
