#include "transport/local/import_budget.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace linkspan::transport::local {
namespace import_budget_test {

constexpr ImportBudget::Owner kOne{10, 0}, kOther{11, 0}, kUnknown{0, 7};

TEST(ImportBudget, IsOfAProcessAndOfAll) {
  ImportBudget budget(
      {.imports_of_process = 2, .imports = 3, .bytes_of_process = 100, .bytes = 150});
  std::vector<ImportBudget::Share> held;
  const auto take = [&](const ImportBudget::Owner& owner, ImportBudget::Amount amount) {
    auto share = budget.acquire(owner, amount);
    if (share.ok()) held.push_back(*std::move(share));
    return share.status();
  };
  EXPECT_EQ(take(kOne, {.imports = 2, .bytes = 100}).to_string(), "ok");
  for (const ImportBudget::Amount& more :
       {ImportBudget::Amount{.imports = 1}, ImportBudget::Amount{.bytes = 1},
        ImportBudget::Amount{.bytes = ~std::uint64_t{0}}})
    EXPECT_EQ(take(kOne, more).code(), Code::busy);
  EXPECT_EQ(take(kOther, {.imports = 1, .bytes = 50}).to_string(), "ok");
  EXPECT_EQ(take(kUnknown, {.imports = 1}).code(), Code::busy) << "of all";
  EXPECT_EQ(take(kUnknown, {.bytes = 1}).code(), Code::busy);
  held.erase(held.begin());
  EXPECT_EQ(take(kOne, {.imports = 1, .bytes = 100}).to_string(), "ok");
  EXPECT_EQ(take(kUnknown, {.imports = 1}).to_string(), "ok");
}

TEST(ImportBudget, ASharesEndIsItsOnlyOne) {
  ImportBudget budget({.imports_of_process = 1, .imports = 9, .bytes_of_process = 0, .bytes = 0});
  {
    ImportBudget::Share share = *budget.acquire(kOne, {.imports = 1});
    ImportBudget::Share moved = std::move(share);
    share = std::move(moved);
    EXPECT_EQ(budget.acquire(kOne, {.imports = 1}).status().code(), Code::busy);
  }
  EXPECT_TRUE(budget.acquire(kOne, {.imports = 1}).ok());
}

}  // namespace import_budget_test
}  // namespace linkspan::transport::local
