// What the compiler made of the copy kernel: the PTX that this build embeds.
#include <algorithm>
#include <regex>
#include <set>
#include <sstream>
#include <string_view>

#include "cuda/kernels.hpp"
#include "tests/driver_facts/fact.hpp"

namespace linkspan::test {
namespace {

class Ptx : public Recorded {
 protected:
  void SetUp() override {
    for (const linkspan_image& image : embedded_images()) {
      if (image.sm != 0) continue;
      std::istringstream text(std::string(image.begin, image.end));
      for (std::string line; std::getline(text, line);)
        if (!line.empty() && line[0] == '\t') lines.push_back(line.substr(1));
    }
    if (lines.empty()) GTEST_SKIP() << "needs a build with kernels";
  }
  void TearDown() override { record(false); }

  /// Instructions with `text` in them.
  std::vector<std::string> with(std::string_view text) const {
    std::vector<std::string> found;
    for (const std::string& line : lines)
      if (line.find(text) != std::string::npos) found.push_back(line);
    return found;
  }
  /// Registers that hold parameter `i` of the kernel: as it came, or as an address of another kind.
  std::set<std::string> registers_of_parameter(int i) const {
    std::set<std::string> registers;
    const std::regex load(R"(ld\.param\.u64\s+(%\w+), \[linkspan_copy_blocks_param_)" +
                          std::to_string(i) + R"(\];)");
    const std::regex convert(R"((?:cvta[.\w]*|mov\.\w+)\s+(%\w+), (%\w+);)");
    std::smatch match;
    for (const std::string& line : lines) {
      if (std::regex_search(line, match, load)) registers.insert(match[1]);
      if (std::regex_search(line, match, convert) && registers.contains(match[2]))
        registers.insert(match[1]);
    }
    return registers;
  }

  std::vector<std::string> lines;
};

TEST_F(Ptx, NothingIsLoadedNonCoherently) {
  EXPECT_EQ(with(".nc"), std::vector<std::string>{});
  EXPECT_EQ(with("ldu."), std::vector<std::string>{});
  EXPECT_EQ(with("tex."), std::vector<std::string>{});
}

TEST_F(Ptx, TheAbortWordIsLoadedRelaxedAtSystemScope) {
  constexpr int kAbort = 2;
  const std::set<std::string> pointers = registers_of_parameter(kAbort);
  ASSERT_FALSE(pointers.empty());
  std::size_t loads = 0;
  for (const std::string& pointer : pointers)
    for (const std::string& line : with("[" + pointer)) {
      EXPECT_TRUE(line.starts_with("ld.relaxed.sys.global.u32")) << line;
      ++loads;
    }
  EXPECT_GE(loads, 2u) << "before the first piece, and before each";
  EXPECT_EQ(with("ld.relaxed").size(), loads);
}

TEST_F(Ptx, TheCopyKernelFencesNothing) {
  EXPECT_EQ(with("fence"), std::vector<std::string>{});
  EXPECT_EQ(with("membar"), std::vector<std::string>{});
}

TEST_F(Ptx, CongruentPiecesMove16BytesALane) {
  EXPECT_GE(with("ld.v4.u32").size(), 8u);  // 8 in flight
  EXPECT_EQ(with("ld.v4.u32").size(), with("st.v4.u32").size());
}

}  // namespace
}  // namespace linkspan::test
