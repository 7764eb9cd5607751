// Tests ImportTable: which regions count as mapped, and what unmap() closes.
#include "transport/local/import_table.hpp"

#include <gtest/gtest.h>

#include "tests/support/take.hpp"

namespace linkspan::transport::local {
namespace import_table_test {

using test::take;

constexpr memory::RegionId kRegion{.incarnation = 5, .buffer = 0, .serial = 3};

class ImportTableTest : public ::testing::Test {
 protected:
  /// Adds an import whose key is opened.
  std::shared_ptr<ImportedMemory> import() {
    number_ = table_.add(kRegion, {});
    auto memory = std::make_shared<ImportedMemory>(LocalKey{}, view_);
    table_.set_memory(number_, memory);
    table_.set_opened(number_);
    return memory;
  }
  bool unmap() {
    ImportTable::Imports used;
    std::vector<ImportTable::Unmapped> ended;
    const bool all = table_.unmap(kRegion, used, ended);
    for (const ImportTable::Unmapped& each : ended) closing_.push_back(each.number);
    return all;
  }

  std::unique_ptr<RegionLivenessTable> liveness_ = take(RegionLivenessTable::create());
  std::shared_ptr<RegionLivenessView> view_ = take(RegionLivenessView::open(*liveness_->fd()));
  ImportTable table_;
  std::uint64_t number_ = 0;
  std::vector<std::uint64_t> closing_;
};

TEST_F(ImportTableTest, MapsARegion_UntilItsImportIsRemoved) {
  EXPECT_FALSE(table_.maps(kRegion));
  const auto memory = import();
  EXPECT_TRUE(table_.maps(kRegion));
  EXPECT_FALSE(table_.maps({.incarnation = 5, .buffer = 0, .serial = 4}));
  EXPECT_EQ(table_.opened(), std::vector{memory});
  EXPECT_EQ(table_.remove(number_).serial, kRegion.serial);
  EXPECT_FALSE(table_.maps(kRegion));
  EXPECT_TRUE(table_.opened().empty());
}

TEST_F(ImportTableTest, ListsNoImport_ThatAThreadStillOpens) {
  number_ = table_.add(kRegion, {});
  const auto memory = std::make_shared<ImportedMemory>(LocalKey{}, view_);
  table_.set_memory(number_, memory);
  EXPECT_TRUE(table_.opened().empty());
  table_.set_opened(number_);
  EXPECT_EQ(table_.opened(), std::vector{memory});
}

TEST_F(ImportTableTest, UnmapsOnce_AndIsMappedUntilThatIsClosed) {
  const auto memory = import();
  EXPECT_TRUE(unmap());
  EXPECT_TRUE(unmap());
  EXPECT_EQ(closing_, std::vector{number_});
  EXPECT_TRUE(table_.maps(kRegion));
  EXPECT_EQ(table_.set_closed(number_)->serial, kRegion.serial);
  EXPECT_FALSE(table_.maps(kRegion));
}

TEST_F(ImportTableTest, UnmapsNothing_ThatIsOpeningOrThatABatchUses) {
  const std::uint64_t opening = table_.add(kRegion, {});
  EXPECT_FALSE(unmap());
  (void)table_.remove(opening);
  const auto memory = import();
  const auto batch = memory;
  EXPECT_FALSE(unmap());
  EXPECT_TRUE(closing_.empty());
}

TEST_F(ImportTableTest, HasNothingToClose_AfterAnImportWasRemoved) {
  (void)import();
  (void)table_.remove(number_);
  EXPECT_EQ(table_.set_closed(number_), std::nullopt);
  EXPECT_TRUE(unmap());
}

}  // namespace import_table_test
}  // namespace linkspan::transport::local
