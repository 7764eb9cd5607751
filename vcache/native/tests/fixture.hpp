// vcache/native/tests/fixture.hpp - memory of this process and of a Lender, between which the tests
// of libnvlink_transfer.so copy.
//
// Threads: externally synchronised.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/stream.hpp"
#include "tests/support/kinds.hpp"
#include "tests/support/take.hpp"
#include "vcache/native/tests/lender.hpp"

namespace linkspan::test {

/// An allocation on a GPU, of this process or of the Lender. Offset 0 follows the first guard; kEnd
/// is the end of the allocation.
class GpuMemory {
 public:
  // 4 MiB with the guards: enough that the driver gives the allocation blocks of its own, so that a
  // handle stands for these bytes alone.
  static constexpr std::uint64_t kWhole = 4u << 20, kBytes = kWhole - 2 * Buffer::kGuard;
  static constexpr std::uint64_t kEnd = kBytes + Buffer::kGuard;

  /// A null Lender means memory of this process. The Lender must outlive this object.
  GpuMemory(Lender* lender, int gpu, std::uint64_t seed, std::uint64_t bytes = kBytes);
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  /// Returns the side for perform_direct_transfer().
  Side at(std::uint64_t offset) const;
  /// Returns the handle of the Lender's memory.
  const IpcBytes& handle() const noexcept { return handle_; }
  int gpu() const noexcept { return gpu_; }
  Buffer& buffer() noexcept { return *buffer_; }  ///< for memory of this process

  void fill(std::uint64_t seed);
  /// Returns an empty text if only these bytes changed since the last fill().
  std::string difference(const std::vector<Expected>& expected = {}) const;

 private:
  Lender* const lender_;
  const int gpu_;
  std::uint64_t seed_;
  std::string name_;                // the memory's name at the Lender
  std::unique_ptr<Buffer> buffer_;  // the memory of this process
  IpcBytes handle_;
};

/// The result of a call in a thread whose allocations may fail.
struct Reported {
  int code = NVLINK_TRANSFER_NOT_READY;
  bool has_text = false;  ///< that begins with the function's name
};
/// Returns the answer of `call`, which calls `function`. Needs no memory itself.
template <class Call>
Reported reported(const char* function, const Call& call) {
  const int code = call();
  const std::string_view text = nvlink_transfer_last_error();
  return {code, text.starts_with(function)};
}

/// Needs two GPUs. All tests of a suite share one Lender.
class NvlinkTransfer : public ::testing::Test {
 protected:
  void SetUp() override;
  static void TearDownTestSuite();
  static Lender& lender();
  /// Starts another Lender in the place of a killed one.
  static void next_lender();

  /// Return a GPU of this process, and a stream of it that ends with the test.
  static const cuda::Device& device(int gpu);
  cuda::CUstream stream(int gpu);
  static bool simulated();

 private:
  static std::unique_ptr<Lender> lender_;
  std::vector<cuda::Stream> streams_;
};

}  // namespace linkspan::test
