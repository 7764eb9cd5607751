// Tests calibration, on the GPU of this machine or over the simulated driver, whose rates mean
// nothing.
#include "copy/calibration.hpp"

#include "tests/support/fake_cuda/controls.hpp"
#include "tests/support/take.hpp"
#include "tests/unit/cuda_fixture.hpp"

namespace linkspan::copy {
namespace calibration_test {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::take;

constexpr Duration kPlenty = seconds(20);  // the simulated driver takes its time

class CalibrationOnDevice : public cuda::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    if (!device->kernels().ok()) GTEST_SKIP() << "needs a build with kernels";
    calibration = take(Calibration::create(*device, 4, kPlenty));
    memory.emplace(take(cuda::DeviceBuffer::create(*scope, Calibration::kBytes)));
  }
  void TearDown() override {
    calibration.reset();
    memory.reset();
  }
  /// Records the rates in the results, to be compared with the built-in ones.
  static void tell(const std::string& link, const Rates& r) {
    const auto line = [](const Rate& rate) {
      return std::to_string(rate.start_us) + " us + " + std::to_string(rate.piece_us) +
             " us a piece, " + std::to_string(rate.bytes / 1e3) + " GB/s";
    };
    RecordProperty(link + ".copy_engine", line(r.engine));
    RecordProperty(link + ".sm_kernel", line(r.kernel));
  }
  const Rates* rates_to() {
    return calibration->rates_to(memory->address(), memory->bytes(), mapping);
  }

  std::unique_ptr<Calibration> calibration;
  std::optional<cuda::DeviceBuffer> memory;
  const std::shared_ptr<const void> mapping = std::make_shared<int>();  // what stands for one
};

TEST_F(CalibrationOnDevice, MeasuresEachLinkOnce) {
  const auto sound = [](const Rates* rates) {
    ASSERT_NE(rates, nullptr);
    for (const Rate& rate : {rates->engine, rates->kernel}) {
      EXPECT_GT(rate.bytes, 1);
      EXPECT_LT(rate.bytes, 1e7);
      EXPECT_GT(rate.start_us + rate.piece_us, 0);
      EXPECT_LT(rate.start_us + rate.piece_us, 1e6);
    }
  };
  for (const Link link : {Link::host, Link::same_gpu}) {
    const Rates* rates = calibration->rates(link);
    sound(rates);
    tell(link == Link::host ? "host" : "same_gpu", *rates);
    EXPECT_EQ(calibration->rates(link), rates);
  }
  const Rates* rates = rates_to();
  sound(rates);
  EXPECT_EQ(calibration->rates_to(0, 0, nullptr), rates) << "known: nothing is touched";
  EXPECT_EQ(mapping.use_count(), 1);
}

TEST_F(CalibrationOnDevice, TooLittleMemoryTellsNothing) {
  const std::uint64_t at = memory->address();
  EXPECT_EQ(calibration->rates_to(at, Calibration::kMin - 1, mapping), nullptr);
  EXPECT_NE(calibration->rates_to(at, Calibration::kMin, mapping), nullptr);
}

/// The timeout may strike anywhere. With ThreadSanitizer the simulated driver reports accesses to
/// memory in use.
TEST_F(CalibrationOnDevice, WhatRunsOutOfTimeIsNotWrittenOver) {
  for (Duration limit = microseconds(20); limit < milliseconds(100); limit += limit / 4) {
    calibration = take(Calibration::create(*device, 4, limit));
    for (const Link link : {Link::host, Link::same_gpu}) calibration->rates(link);
  }
  calibration = take(Calibration::create(*device, 4, kPlenty));
  EXPECT_NE(calibration->rates(Link::host), nullptr);
}

TEST_F(CalibrationOnDevice, NobodyWaitsForAGpuThatStandsStill) {
  const test::FakeCuda fake = test::FakeCuda::find();
  if (!fake) GTEST_SKIP() << "needs the simulated driver";
  constexpr Duration kLimit = seconds(3);  // the default is too short beside sanitizers
  calibration = take(Calibration::create(*device, 4, kLimit));
  test::FakeCudaHold held(fake, device->info().ordinal);
  const auto begin = base::Clock::steady().now();
  EXPECT_EQ(rates_to(), nullptr);
  EXPECT_LT(base::Clock::steady().now() - begin, kLimit + seconds(20));
  EXPECT_EQ(rates_to(), nullptr) << "what was begun is under way";
  EXPECT_EQ(mapping.use_count(), 2) << "and still to be read";
  held.release();
  const auto limit = base::Deadline::after(base::Clock::steady(), kPlenty);
  const Rates* rates = nullptr;
  while (rates == nullptr && !limit.passed()) rates = rates_to();
  EXPECT_NE(rates, nullptr);
  EXPECT_EQ(mapping.use_count(), 1);
}

}  // namespace calibration_test
}  // namespace linkspan::copy
