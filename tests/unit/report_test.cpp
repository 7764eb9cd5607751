// Tests the texts of dumps and log lines.
#include "engine/diagnostics/report.hpp"

#include <gtest/gtest.h>

namespace linkspan::engine {
namespace report_test {

using namespace std::chrono_literals;

TEST(Report, QuotesANameWithoutWhatEndsOrBreaksALine) {
  EXPECT_EQ(quoted("worker 7"), "\"worker 7\"");
  EXPECT_EQ(quoted(""), "\"\"");
  EXPECT_EQ(quoted("a\"b\nc\x1b[d\x7f"), "\"a?b?c?[d?\"");
  EXPECT_EQ(quoted("\xc3\xa4"), "\"\xc3\xa4\"") << "UTF-8 stays";
}

TEST(Report, NamesAnAge_InSecondsFromTenOn) {
  EXPECT_EQ(age_of(0ms), "0 ms");
  EXPECT_EQ(age_of(9999ms), "9999 ms");
  EXPECT_EQ(age_of(10000ms), "10.0 s");
  EXPECT_EQ(age_of(12345ms), "12.3 s");
  EXPECT_EQ(age_of(1h), "3600.0 s");
}

TEST(Report, FormatsANumberAs16Digits) {
  EXPECT_EQ(hex_of(0), "0000000000000000");
  EXPECT_EQ(hex_of(0xfedcba9876543210), "fedcba9876543210");
}

TEST(Report, NamesAGpuAsNvidiaSmiDoes) {
  GpuUuid gpu;
  for (std::size_t i = 0; i < gpu.size(); ++i) gpu[i] = static_cast<std::byte>(i * 16 + 15 - i);
  EXPECT_EQ(gpu_name(gpu), "GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0");
}

TEST(Report, ListsAtMost64AndCountsTheRest) {
  Listing listing("transfers");
  for (std::size_t i = 0; i < Listing::kMax; ++i) EXPECT_TRUE(listing.room());
  EXPECT_EQ(listing.rest(), "");
  EXPECT_EQ(listing.more(), "");
  EXPECT_FALSE(listing.room());
  EXPECT_FALSE(listing.room());
  EXPECT_EQ(listing.rest(), " and 2 more");
  EXPECT_EQ(listing.more(), "and 2 more transfers\n");
}

}  // namespace report_test
}  // namespace linkspan::engine
