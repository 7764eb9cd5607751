#include "base/log.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace linkspan::base {

using Lines = std::vector<std::pair<Level, std::string>>;

TEST(Log, DropsWhatIsBelowTheThreshold) {
  Lines lines;
  const Log log(Level::warning, [&](Level l, std::string_view t) { lines.emplace_back(l, t); });
  EXPECT_FALSE(log.enabled(Level::info));
  EXPECT_TRUE(log.enabled(Level::warning));
  log.write(Level::info, "quiet");
  log.write(Level::error, "loud");
  EXPECT_EQ(lines, (Lines{{Level::error, "loud"}}));
}

TEST(Log, OffOrNoSinkDropsAll) {
  int calls = 0;
  const Log off(Level::off, [&](Level, std::string_view) { ++calls; });
  off.write(Level::error, "text");
  off.write(Level::off, "text");
  EXPECT_EQ(calls, 0);
  const Log none(Level::debug, nullptr);
  EXPECT_FALSE(none.enabled(Level::error));
  none.write(Level::error, "text");
}

TEST(Log, KeepsATextInItsLine) {
  Lines lines;
  const Log log(Level::debug, [&](Level l, std::string_view t) { lines.emplace_back(l, t); });
  log.write(Level::info, "peer \"a\n[ERROR] b\x1b[2J\"");
  EXPECT_EQ(lines.at(0).second, "peer \"a?[ERROR] b?[2J\"");
  log.write(Level::info, "\xc3\xa4 is text");
  EXPECT_EQ(lines.at(1).second, "\xc3\xa4 is text");
}

TEST(Log, ParsesLevelsInAnyCase) {
  EXPECT_EQ(parse_level("INFO"), Level::info);
  EXPECT_EQ(parse_level("warning"), Level::warning);
  EXPECT_EQ(parse_level("Warn"), Level::warning);
  EXPECT_EQ(parse_level("ERROR"), Level::error);
  EXPECT_EQ(parse_level("debug"), Level::debug);
  EXPECT_EQ(parse_level("off"), Level::off);
  for (const char* bad : {"", "INF", "INFOS", "2", " INFO"}) EXPECT_FALSE(parse_level(bad)) << bad;
}

TEST(Log, WritesLinesToStderr) {
  testing::internal::CaptureStderr();
  const Log log(Level::debug, stderr_sink());
  log.write(Level::warning, "disk {} is full");  // no format string
  log.write(Level::info, "done");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "[WARNING] disk {} is full\n[INFO] done\n");
}

}  // namespace linkspan::base
