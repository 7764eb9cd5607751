// Tests the PTX of the copy kernels that this build embeds.
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/kernels.hpp"
#include "tests/driver_facts/fact.hpp"

namespace linkspan::test {
namespace ptx_test {

class Ptx : public Recorded {
 protected:
  using Lines = std::vector<std::string>;

  void SetUp() override {
    for (const linkspan_image& image : embedded_images()) {
      if (image.sm != 0) continue;
      const std::regex entry(R"(\.entry (\w+)\()");
      std::istringstream text(std::string(image.begin, image.end));
      std::smatch found;
      std::string kernel;
      for (std::string line; std::getline(text, line);) {
        if (std::regex_search(line, found, entry)) kernel = found[1];
        if (!line.empty() && line[0] == '\t') kernels[kernel].push_back(line.substr(1));
      }
    }
    if (kernels.empty()) GTEST_SKIP() << "needs a build with kernels";
  }
  void TearDown() override { record(false); }

  /// Instructions with `text` in them.
  static Lines with(const Lines& lines, std::string_view text) {
    Lines found;
    for (const std::string& line : lines)
      if (line.find(text) != std::string::npos) found.push_back(line);
    return found;
  }
  Lines with(std::string_view text) const {
    Lines found;
    for (const auto& [kernel, lines] : kernels)
      for (const std::string& line : with(lines, text)) found.push_back(line);
    return found;
  }
  /// Registers that hold a kernel's parameter `i`: as it came, or as an address of another kind.
  std::set<std::string> registers_of(const std::string& kernel, int i) const {
    std::set<std::string> registers;
    const std::regex load(R"(ld\.param\.u64\s+(%\w+), \[)" + kernel + "_param_" +
                          std::to_string(i) + R"(\];)");
    const std::regex convert(R"((?:cvta[.\w]*|mov\.\w+)\s+(%\w+), (%\w+);)");
    std::smatch match;
    for (const std::string& line : kernels.at(kernel)) {
      if (std::regex_search(line, match, load)) registers.insert(match[1]);
      if (std::regex_search(line, match, convert) && registers.contains(match[2]))
        registers.insert(match[1]);
    }
    return registers;
  }

  std::map<std::string, Lines> kernels;
};

TEST_F(Ptx, NothingIsLoadedNonCoherently) {
  EXPECT_EQ(with(".nc"), std::vector<std::string>{});
  EXPECT_EQ(with("ldu."), std::vector<std::string>{});
  EXPECT_EQ(with("tex."), std::vector<std::string>{});
}

TEST_F(Ptx, TheAbortWordIsLoadedRelaxedAtSystemScope) {
  for (const auto& [kernel, abort] : {std::pair<std::string, int>{"linkspan_copy_blocks", 2},
                                      {"linkspan_copy_pages", 1},
                                      {"linkspan_copy_pages_of_pairs", 1}}) {
    ASSERT_TRUE(kernels.contains(kernel));
    const Lines& lines = kernels.at(kernel);
    const std::set<std::string> pointers = registers_of(kernel, abort);
    ASSERT_FALSE(pointers.empty()) << kernel;
    std::size_t loads = 0;
    for (const std::string& pointer : pointers)
      for (const std::string& line : with(lines, "[" + pointer + "]")) {
        EXPECT_TRUE(line.starts_with("ld.relaxed.sys.global.u32")) << kernel << ": " << line;
        ++loads;
      }
    EXPECT_GE(loads, 2u) << kernel << ": before the first piece, and before each";
    EXPECT_EQ(with(lines, "ld.relaxed").size(), loads) << kernel;
  }
}

TEST_F(Ptx, TheCopyKernelFencesNothing) {
  for (const char* kernel : {"linkspan_copy_blocks", "linkspan_copy_pages",
                             "linkspan_copy_pages_of_pairs", "linkspan_unpack"}) {
    ASSERT_TRUE(kernels.contains(kernel));
    EXPECT_EQ(with(kernels.at(kernel), "fence"), Lines{});
    EXPECT_EQ(with(kernels.at(kernel), "membar"), Lines{});
  }
}

TEST_F(Ptx, TheCapturedKernelFencesBeforeItLeavesAndBeforeItCounts) {
  ASSERT_TRUE(kernels.contains("linkspan_copy_captured"));
  const Lines& lines = kernels.at("linkspan_copy_captured");
  // Before `left`, and between `left` and the count.
  std::string order;
  for (const std::string& line : lines)
    for (const char* text : {"fence.acq_rel.sys", "atom.relaxed.sys.global.add.u64",
                             "red.relaxed.sys.global.add.u64", "bar.sync"})
      if (line.starts_with(text)) order += std::string(text).substr(0, 1);
  EXPECT_TRUE(order.starts_with("ab")) << order;
  EXPECT_TRUE(order.ends_with("bfafr")) << order;
  EXPECT_EQ(with(lines, "ld.relaxed.sys.global.u32").size(), with(lines, "ld.relaxed").size());
}

TEST_F(Ptx, TheResidentKernelFencesOnceBeforeAndOnceBehindACommand) {
  ASSERT_TRUE(kernels.contains("linkspan_resident"));
  const Lines& lines = kernels.at("linkspan_resident");
  EXPECT_EQ(with(lines, "fence.acq_rel.sys").size(), 3u);  // the third: that it leaves
  EXPECT_EQ(with(lines, "st.relaxed.sys.global.u64").size(), 2u);
  EXPECT_EQ(with(lines, "ld.relaxed.sys.global.u64").size(), 1u) << "each word whole";
}

TEST_F(Ptx, CongruentPiecesMove16BytesALane) {
  for (const char* kernel :
       {"linkspan_copy_blocks", "linkspan_copy_pages", "linkspan_copy_pages_of_pairs",
        "linkspan_copy_captured", "linkspan_resident"}) {
    ASSERT_TRUE(kernels.contains(kernel));
    const Lines& lines = kernels.at(kernel);
    EXPECT_GE(with(lines, "ld.v4.u32").size(), 8u) << kernel;  // 8 in flight
    EXPECT_EQ(with(lines, "ld.v4.u32").size(), with(lines, "st.v4.u32").size()) << kernel;
  }
}

TEST_F(Ptx, TheUnpackKernelStores16BytesWhateverTheAlignment) {
  ASSERT_TRUE(kernels.contains("linkspan_unpack"));
  const Lines& lines = kernels.at("linkspan_unpack");
  const auto count = [&](const char* text) { return with(lines, text).size(); };
  // A word that is shifted into its place takes two loads, four funnel shifts and one store.
  const std::size_t shifted = count("shf.r") / 4;
  EXPECT_GE(shifted, 4u + 2 + 1 + 1);
  EXPECT_GE(count("st.v4.u32"), shifted + 8 + 4 + 2 + 1 + 1);
  EXPECT_EQ(count("ld.v4.u32"), count("st.v4.u32") + shifted);
  EXPECT_EQ(count("st.u8"), 4u) << "a head and a tail of each sort";
  EXPECT_EQ(count("st.u32") + count("st.u64") + count("st.u16"), 0u);
  EXPECT_EQ(count("bar."), 0u);
  EXPECT_EQ(count("local"), 0u) << "the pools are read where they are";
}

}  // namespace ptx_test
}  // namespace linkspan::test
