// tests/driver_facts/fact.hpp - how the driver behaves where the library leans on it.
//
// One test for each behaviour that a comment cites, as `fact: Topic.Name`, which is the name of the
// test; scripts/check_facts.py holds the two together. The tests call the driver bare, and run over
// the simulated driver too, which has to behave the same or is listed (kNotSimulated, fact.cpp).
// With LINKSPAN_FACTS_OUT=FILE the program leaves {"rows": [{"id", "outcome", "simulated"}]} there.
// Threads: externally synchronised, but eventually() and the driver's table: any thread.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cuda/driver.hpp"

namespace linkspan::test {

using namespace linkspan::cuda;  // NOLINT(google-build-using-namespace): the driver's own words
using namespace std::chrono_literals;  // NOLINT(google-global-names-in-headers)

/// Longer than any fact takes.
inline constexpr std::chrono::seconds kLimit{10};
/// A call that takes longer than this counts as waiting.
inline constexpr std::chrono::milliseconds kWhile{100};

/// Looks until it is true; false when it is not by the end of `limit`.
bool eventually(const std::function<bool()>& condition, std::chrono::nanoseconds limit = kLimit);
inline bool stays_false(const std::function<bool()>& condition) {
  return !eventually(condition, kWhile);
}

inline CUdeviceptr address_of(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

/// A context is current for the length of a scope.
class Current {
 public:
  Current(const Driver& driver, CUcontext context) : driver_(driver) {
    EXPECT_EQ(driver_.cuCtxPushCurrent(context), CUDA_SUCCESS);
  }
  ~Current() {
    CUcontext popped = nullptr;
    EXPECT_EQ(driver_.cuCtxPopCurrent(&popped), CUDA_SUCCESS);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Driver& driver_;
};

/// A test with a row.
class Recorded : public ::testing::Test {
 protected:
  /// Records a measured number in words. Without it the answer is "as claimed".
  void found(std::string words) { found_ = std::move(words); }
  void record(bool simulated);  ///< At its end.

 private:
  std::string found_ = "as claimed";
};

/// The primary contexts of all GPUs, without peer access, the first one current.
class Fact : public Recorded {
 protected:
  static constexpr std::size_t kBytes = 1u << 20;

  void SetUp() override;
  /// Releases all held streams, and frees what the test created.
  void TearDown() override;
  /// Skips where there are fewer; true: go on.
  bool with_gpus(std::size_t count);

  CUstream new_stream(std::size_t gpu = 0);
  CUevent new_event(std::size_t gpu = 0);
  CUdeviceptr new_memory(std::size_t gpu = 0, std::size_t bytes = kBytes);
  /// Returns mapped host memory for all GPUs, zeroed and page-aligned.
  std::byte* new_pinned(std::size_t bytes = kBytes);
  /// Returns a word of mapped host memory, zero at first. Its number is valid for the life of the
  /// test.
  std::atomic_ref<std::uint64_t> word(std::size_t i) const {
    return std::atomic_ref(*(words_ + 8 * i));
  }
  CUdeviceptr word_address(std::size_t i) const { return address_of(words_ + 8 * i); }

  /// Makes work that is submitted to `stream` from now on wait until the word is set, or until
  /// TearDown().
  void hold(CUstream stream, std::size_t i) const {
    ASSERT_EQ(cu->cuStreamWaitValue64(stream, word_address(i), 1, CU_STREAM_WAIT_VALUE_GEQ),
              CUDA_SUCCESS);
  }
  void release(std::size_t i) const { word(i) = 1; }
  CUresult write(CUstream stream, std::size_t i, std::uint64_t value = 1) const {
    return cu->cuStreamWriteValue64(stream, word_address(i), value, CU_STREAM_WRITE_VALUE_DEFAULT);
  }
  /// Waits until the word has the value. Returns false after kLimit.
  bool comes(std::size_t i, std::uint64_t value = 1) const {
    return eventually([&] { return word(i) == value; });
  }
  bool idle(CUstream stream) const {
    return eventually([&] { return cu->cuStreamQuery(stream) != CUDA_ERROR_NOT_READY; });
  }

  const Driver* cu = nullptr;
  std::vector<CUcontext> contexts;
  bool simulated = false;

 private:
  static constexpr std::size_t kWords = 64;

  std::uint64_t* words_ = nullptr;  // each on a line of its own
  std::vector<CUstream> streams_;
  std::vector<CUevent> events_;
  std::vector<CUdeviceptr> memory_;
  std::vector<void*> pinned_;
};

}  // namespace linkspan::test
