// Tests an error of the driver at each of its calls in turn, a context that is lost at each, and a
// late call: every operation answers in time with a typed error, reported successes are true, and
// nothing is left. Each case runs workload.hpp in a fresh process.
//
// LINKSPAN_LONG=1 with LINKSPAN_TEST_LARGE=1 lets every call fail; without them
// LINKSPAN_FAULTS_SEED chooses a sample. LINKSPAN_FAULTS_ORDER="fail * 17 999" repeats one.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "tests/faults/workload.hpp"
#include "tests/support/driver_shim/control.hpp"
#include "tests/support/kinds.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {
namespace driver_errors_test {

class DriverErrors : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!DriverShim::find() || !need_gpus(2).ok()) return;
    const char* set = std::getenv("LINKSPAN_FAULTS_SEED");
    seed_ = set != nullptr ? std::strtoull(set, nullptr, 10) : std::random_device()();
    good_ = work("");
  }
  void SetUp() override {
    if (!DriverShim::find()) GTEST_SKIP() << DriverShim::kNeeded;
    if (const Status status = need_gpus(2); !status.ok()) GTEST_SKIP() << status.to_string();
    ASSERT_EQ(good_.to_string() + good_.wrong + good_.left, "");
    std::printf("LINKSPAN_FAULTS_SEED=%zu, %zu calls of the driver\n", std::size_t{seed_},
                good_.calls.size());
  }

  static bool all_of_them() {  // sanitizers take their time
    return std::getenv("LINKSPAN_LONG") != nullptr && std::getenv("LINKSPAN_TEST_LARGE") != nullptr;
  }
  /// Numbers of calls, from 1. Of a run of one entry, such as thousands of events, the first and
  /// the last.
  static std::vector<std::size_t> sites(std::size_t sample) {
    const std::vector<std::string>& calls = good_.calls;
    std::vector<std::size_t> chosen;
    for (std::size_t i = 0; i < calls.size(); ++i)
      if (i == 0 || i + 1 == calls.size() || calls[i] != calls[i - 1] || calls[i] != calls[i + 1])
        chosen.push_back(i + 1);
    if (all_of_them()) return chosen;
    std::mt19937_64 random(seed_);
    std::shuffle(chosen.begin(), chosen.end(), random);
    if (std::getenv("LINKSPAN_LONG") != nullptr) sample *= 4;
    chosen.resize(std::min(chosen.size(), sample));
    return chosen;
  }

  /// Returns true if the failed call preceded one that destroys something, which was not made then.
  static bool guard_of_an_ender(const Worked& worked) {
    const bool guard =
        worked.struck == "cuThreadExchangeStreamCaptureMode" || worked.struck == "cuCtxPushCurrent";
    return guard && worked.left.ends_with(" +1") && worked.left.find(',') == std::string::npos;
  }

  static std::string describe(const Worked& worked) {
    std::string text = "failed " + worked.struck + '\n';
    for (const Worked::Step& step : worked.steps)
      text += step.name + ": " + step.code + ' ' + step.what + ", " +
              std::to_string(step.took / 1ms) + " ms\n";
    return text;
  }
  /// Checks that the process answered in time and with typed errors, moved the right bytes, closed,
  /// and left nothing.
  static void check(const std::string& order, const std::function<void(const Worked&)>& more) {
    SCOPED_TRACE(order + ", LINKSPAN_FAULTS_SEED=" + std::to_string(seed_));
    try {
      const Worked worked = work(order);
      SCOPED_TRACE("failed " + worked.struck + "\n" + worked.to_string());
      EXPECT_EQ(worked.wrong, "");
      for (const Worked::Step& step : worked.steps) {
        EXPECT_LE(step.took, kStepLimit) << step.name;
        EXPECT_TRUE(kWords.contains(step.code)) << step.name << ": " << step.code;
      }
      const Worked::Step* close = worked.find("close");
      EXPECT_TRUE(close == nullptr || close->code == "ok") << close->what;
      EXPECT_TRUE(worked.left.empty() || guard_of_an_ender(worked)) << worked.left;
      more(worked);
      if (std::getenv("LINKSPAN_FAULTS_ORDER") != nullptr)
        std::printf("%s", describe(worked).c_str());
    } catch (const std::exception& error) {
      ADD_FAILURE() << "that process crashed or stands still: " << error.what();
    }
  }
  /// Checks several at a time, until the first failure.
  static void check_all(
      std::vector<std::string> orders,
      const std::function<void(const Worked&)>& more = [](const Worked&) {}) {
    if (const char* one = std::getenv("LINKSPAN_FAULTS_ORDER")) orders = {one};
    std::atomic<std::size_t> next{0};
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < std::max(2u, std::thread::hardware_concurrency() / 2); ++i)
      threads.emplace_back([&] {
        for (std::size_t mine = next++; mine < orders.size() && !HasFailure(); mine = next++)
          check(orders[mine], more);
      });
  }

  inline static const std::set<std::string> kWords = {
      "ok", "cuda", "no_resource", "unsupported", "unreachable", "corrupt", "disconnected"};
  inline static Worked good_;  // where no call fails
  inline static std::uint64_t seed_ = 0;
};

TEST_F(DriverErrors, AtEachCallOneIsAnswered) {
  std::vector<std::string> orders;
  for (const std::size_t site : sites(24))  // another seed swaps the errors
    orders.push_back("fail * " + std::to_string(site) + ((site + seed_) % 2 == 0 ? " 999" : " 2"));
  check_all(orders);
}

/// One GPU's context is lost. Its transfers report that; those between CPUs and with other GPUs go
/// on.
TEST_F(DriverErrors, AtEachCallTheContextIsLost) {
  std::vector<std::string> orders;
  for (const std::size_t site : sites(12)) {
    const std::string& entry = good_.calls[site - 1];
    if (!entry.starts_with("cuDevice") && !entry.starts_with("cuPointer") && entry != "cuInit")
      orders.push_back("lose * " + std::to_string(site) + " 719");
  }
  check_all(orders, [](const Worked& worked) {
    const bool of_a_context = !worked.struck.starts_with("cuPointer") &&
                              !worked.struck.starts_with("cuDevice") && worked.struck != "cuInit";
    for (const Worked::Step& step : worked.steps) {
      if (of_a_context && step.name.starts_with("host and host")) {
        EXPECT_EQ(step.code, "ok") << step.name << ": " << step.what;
      }
      if (step.code == "cuda" && step.name.find("peer writes") == std::string::npos) {
        EXPECT_NE(step.what.find("719"), std::string::npos) << step.name << ": " << step.what;
      }
    }
  });
}

/// Each call of an entry, or one of those that are called by the hundred.
TEST_F(DriverErrors, ACallThatIsLateBreaksNothing) {
  std::map<std::string, std::size_t> entries;
  for (const std::string& entry : good_.calls) ++entries[entry];
  std::mt19937_64 random(seed_);
  std::vector<std::string> orders;
  for (const auto& [entry, calls] : entries)
    orders.push_back(calls < 500
                         ? "delay " + entry + " 2000"
                         : "stall " + entry + ' ' + std::to_string(1 + random() % calls) + " 5000");
  if (!all_of_them()) {
    std::shuffle(orders.begin(), orders.end(), random);
    orders.resize(8);
  }
  check_all(orders, [](const Worked& worked) { EXPECT_EQ(worked.to_string(), ""); });
}

}  // namespace driver_errors_test
}  // namespace linkspan::test
