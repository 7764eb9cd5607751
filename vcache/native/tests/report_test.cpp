// Tests what the library reports: version, texts of codes, statistics, log. Needs no driver.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "vcache/native/tests/fixture.hpp"

namespace linkspan::test {
namespace report_test {

TEST(NvlinkReport, TheVersion) { EXPECT_STREQ(nvlink_transfer_version(), "0.1.0"); }

TEST(NvlinkReport, ATextForEachCode) {
  const int codes[] = {NVLINK_TRANSFER_OK,
                       NVLINK_TRANSFER_INVALID_VALUE,
                       NVLINK_TRANSFER_INVALID_DEVICE_POINTER,
                       NVLINK_TRANSFER_NO_DRIVER,
                       NVLINK_TRANSFER_NO_DEVICE,
                       NVLINK_TRANSFER_INVALID_DEVICE,
                       NVLINK_TRANSFER_INVALID_STREAM,
                       NVLINK_TRANSFER_NOT_READY,
                       NVLINK_TRANSFER_CAPTURING,
                       NVLINK_TRANSFER_TIMED_OUT,
                       NVLINK_TRANSFER_CANCELED,
                       NVLINK_TRANSFER_FAILED};
  std::set<std::string> texts;
  for (const int code : codes) {
    const std::string text = nvlink_transfer_error_string(code);
    EXPECT_TRUE(texts.insert(text).second) << code << " is told as another: " << text;
    EXPECT_GT(text.size(), 5u) << code << ": " << text;
    EXPECT_STRNE(cudaGetErrorString(code), "") << code;
  }
  if (!need_gpus(1).ok()) return;  // the text is the driver's
  EXPECT_TRUE(std::string_view(nvlink_transfer_error_string(NVLINK_TRANSFER_INVALID_DEVICE))
                  .starts_with("CUDA_ERROR_INVALID_DEVICE: "));
}

TEST(NvlinkReport, ATextForUnknownCodesToo) {
  for (const int code : {-1, 12345, 1 << 30, -(1 << 30)}) {
    ASSERT_NE(nvlink_transfer_error_string(code), nullptr) << code;
    EXPECT_STRNE(nvlink_transfer_error_string(code), "") << code;
    ASSERT_NE(cudaGetErrorString(code), nullptr) << code;
  }
  for (int code = -5; code < 1100; ++code)
    ASSERT_NE(nvlink_transfer_error_string(code), nullptr) << code;
}

/// Texts are static: later calls do not change one that was returned.
TEST(NvlinkReport, TextsOfCodesStay) {
  const char* first = nvlink_transfer_error_string(54321);
  const std::string copy = first;
  for (int code = 50000; code < 50100; ++code) (void)nvlink_transfer_error_string(code);
  EXPECT_EQ(copy, first);
}

TEST(NvlinkReport, StatisticsIntoASmallerStruct) {
  std::array<unsigned char, sizeof(nvlink_transfer_stats_t) + 16> bytes{};
  bytes.fill(0xee);
  for (std::uint32_t size = 0; size < sizeof(nvlink_transfer_stats_t); ++size) {
    std::memcpy(bytes.data(), &size, sizeof size);
    const int due = size < 8 ? NVLINK_TRANSFER_INVALID_VALUE : NVLINK_TRANSFER_OK;
    alignas(nvlink_transfer_stats_t) std::array<unsigned char, bytes.size()> aligned = bytes;
    auto* given = reinterpret_cast<nvlink_transfer_stats_t*>(aligned.data());
    EXPECT_EQ(nvlink_transfer_stats(given), due) << size;
    for (std::size_t i = std::max<std::size_t>(size, sizeof size); i < aligned.size(); ++i)
      ASSERT_EQ(aligned[i], 0xee) << "of " << size << " bytes it wrote byte " << i;
  }
  EXPECT_EQ(nvlink_transfer_stats(nullptr), NVLINK_TRANSFER_INVALID_VALUE);
}

/// A program built for a later version gets the fields that this version knows.
TEST(NvlinkReport, StatisticsIntoALargerStruct) {
  struct {
    nvlink_transfer_stats_t known;
    std::uint64_t later[4];
    std::uint64_t guard;
  } given{.known = {}, .later = {}, .guard = 77};
  given.known.size = sizeof given - sizeof given.guard;
  const std::uint64_t failures = stats().failures;
  EXPECT_EQ(transfer({.from = {.gpu = -1, .pointer = 1}, .to = {.pointer = 1}, .bytes = 1}),
            need_gpus(1).ok() ? NVLINK_TRANSFER_INVALID_DEVICE : NVLINK_TRANSFER_NO_DRIVER);
  EXPECT_EQ(nvlink_transfer_stats(&given.known), 0);
  EXPECT_EQ(given.known.failures, failures + 1);
  EXPECT_EQ(given.guard, 77u);
}

TEST(NvlinkReport, AFailureIsLoggedWithItsText) {
  std::vector<std::pair<int, std::string>> logged;
  nvlink_transfer_set_log_callback(
      [](int level, const char* text, void* user) {
        static_cast<decltype(logged)*>(user)->emplace_back(level, text);
      },
      &logged);
  EXPECT_EQ(nvlink_transfer_cancel(~std::uint64_t{0}), NVLINK_TRANSFER_INVALID_VALUE);
  nvlink_transfer_set_log_callback(nullptr, nullptr);
  EXPECT_EQ(nvlink_transfer_cancel(~std::uint64_t{1}), NVLINK_TRANSFER_INVALID_VALUE);
  ASSERT_EQ(logged.size(), 1u);
  EXPECT_EQ(logged[0].first, 3);
  EXPECT_NE(logged[0].second.find("18446744073709551615"), std::string::npos) << logged[0].second;
}

TEST(NvlinkReport, ACallbackMayCallTheLibrary) {
  static int calls = 0;
  nvlink_transfer_set_log_callback(
      [](int, const char*, void*) {
        ++calls;
        EXPECT_EQ(nvlink_transfer_cancel(~std::uint64_t{0}), NVLINK_TRANSFER_INVALID_VALUE);
        nvlink_transfer_set_log_callback(nullptr, nullptr);
      },
      nullptr);
  EXPECT_EQ(nvlink_transfer_cancel(~std::uint64_t{0}), NVLINK_TRANSFER_INVALID_VALUE);
  EXPECT_EQ(calls, 1);
}

/// Null disables the callback. A callback that is replaced while others log is not called
/// afterwards.
TEST(NvlinkReport, ACallbackThatWasReplacedIsNotRunning) {
  struct Seen {
    std::atomic<int> inside{0}, calls{0};
    std::atomic<bool> gone{false};
  };
  const auto log = [](int level, const char* text, void* user) {
    auto& seen = *static_cast<Seen*>(user);
    EXPECT_EQ(++seen.inside, 1) << "two calls at a time";
    EXPECT_FALSE(seen.gone);
    EXPECT_TRUE(level >= 0 && level <= 3 && text != nullptr && *text != '\0');
    ++seen.calls;
    --seen.inside;
  };
  std::atomic<bool> stop{false};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      while (!stop)
        (void)transfer({.from = {.gpu = -1, .pointer = 1}, .to = {.pointer = 1}, .bytes = 1});
    });
  for (int i = 0; i < 50; ++i) {
    Seen seen;
    nvlink_transfer_set_log_callback(log, &seen);
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    while (seen.calls < 3 && !limit.passed()) std::this_thread::yield();
    nvlink_transfer_set_log_callback(nullptr, nullptr);
    seen.gone = true;
    EXPECT_EQ(seen.inside, 0);
    EXPECT_GE(seen.calls, 3);
  }
  stop = true;
}

}  // namespace report_test
}  // namespace linkspan::test
