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

TEST(Log, CountsRepeatedLinesAndWritesTheirNumber_WhenTheSecondIsOver) {
  Lines lines;
  FakeClock clock;
  const Log log(
      Level::warning, [&](Level l, std::string_view t) { lines.emplace_back(l, t); }, clock);
  int texts = 0;
  const auto stranger = [&] {
    log.write_repeated(Repeated::stranger, Level::warning, [&] {
      ++texts;
      return "stranger " + std::to_string(texts);
    });
  };
  EXPECT_EQ(log.write_counted(), std::nullopt);
  for (int i = 0; i < 1235; ++i) stranger();
  EXPECT_EQ(lines, (Lines{{Level::warning, "stranger 1"}}));
  EXPECT_EQ(texts, 1) << "a text that is not written is not made";
  EXPECT_EQ(log.write_counted(), clock.now() + std::chrono::seconds(1));
  log.write_repeated(Repeated::peer, Level::error, [] { return std::string("another kind"); });
  clock.advance(std::chrono::seconds(1));
  EXPECT_EQ(log.write_counted(), std::nullopt);
  const std::string sum = "1234 more connections were dropped before they had shown who they are";
  EXPECT_EQ(lines, (Lines{{Level::warning, "stranger 1"},
                          {Level::error, "another kind"},
                          {Level::warning, sum}}));
  // The next ones bring the sum before them, if nothing else has.
  lines.clear();
  stranger();
  stranger();
  clock.advance(std::chrono::seconds(5));
  stranger();
  const Lines more{{Level::warning, "stranger 2"},
                   {Level::warning, "1 more" + sum.substr(sum.find(" more") + 5)},
                   {Level::warning, "stranger 3"}};
  EXPECT_EQ(lines, more);
  stranger();
  log.write_all_counted();
  EXPECT_EQ(lines.size(), more.size() + 1) << "at the end without a second's delay";
  log.write_repeated(Repeated::life, Level::info, [] { return std::string("below"); });
  log.write_all_counted();
  EXPECT_EQ(lines.size(), more.size() + 1);
}

TEST(Log, MayBeWrittenByItsSink) {
  Lines lines;
  const Log* self = nullptr;
  const Log log(Level::warning, [&](Level l, std::string_view t) {
    lines.emplace_back(l, t);
    if (lines.size() < 3)
      self->write_repeated(Repeated::peer, l, [] { return std::string("from inside"); });
    self->write_all_counted();
  });
  self = &log;
  log.write_repeated(Repeated::peer, Level::warning, [] { return std::string("first"); });
  EXPECT_EQ(lines.size(), 3u);
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
