// vcache/native/tests/fixture.hpp - memory of this process and of a Lender, which the tests of
// libnvlink_transfer.so move bytes between.
//
// Threads: externally synchronised.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cuda/stream.hpp"
#include "tests/support/kinds.hpp"
#include "tests/support/take.hpp"
#include "vcache/native/tests/lender.hpp"

namespace linkspan::test {

/// An allocation of a GPU, this process's or the Lender's. Offsets count from behind its first
/// guard, kEnd is the end of the allocation.
class GpuMemory {
 public:
  // With the guards 4 MiB: no part of a block that the driver shares out, so that a handle stands
  // for these bytes and no more.
  static constexpr std::uint64_t kWhole = 4u << 20, kBytes = kWhole - 2 * Buffer::kGuard;
  static constexpr std::uint64_t kEnd = kBytes + Buffer::kGuard;

  /// Null: of this process. The Lender outlives it.
  GpuMemory(Lender* lender, int gpu, std::uint64_t seed, std::uint64_t bytes = kBytes);
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  /// As perform_direct_transfer() names it.
  Side at(std::uint64_t offset) const;
  /// Of the Lender's: what stands for it.
  const IpcBytes& handle() const noexcept { return handle_; }
  int gpu() const noexcept { return gpu_; }
  Buffer& buffer() noexcept { return *buffer_; }  ///< of this process's

  void fill(std::uint64_t seed);
  /// Empty: all is what the last fill() left, but for these.
  std::string difference(const std::vector<Expected>& expected = {}) const;

 private:
  Lender* const lender_;
  const int gpu_;
  std::uint64_t seed_;
  std::string name_;                // of the Lender's
  std::unique_ptr<Buffer> buffer_;  // of this process's
  IpcBytes handle_;
};

/// Needs two GPUs. One Lender for all tests of a suite.
class NvlinkTransfer : public ::testing::Test {
 protected:
  void SetUp() override;
  static void TearDownTestSuite();
  static Lender& lender();
  /// Instead of one that was killed.
  static void next_lender();

  /// Of this process; and the stream of a GPU of it, which ends with the test.
  static const cuda::Device& device(int gpu);
  cuda::CUstream stream(int gpu);
  static bool simulated();

 private:
  static std::unique_ptr<Lender> lender_;
  std::vector<cuda::Stream> streams_;
};

}  // namespace linkspan::test
