// Calibration, on the GPU of this machine or over the simulated driver, whose rates mean nothing.
#include "copy/calibration.hpp"

#include "tests/support/fake_cuda/controls.hpp"
#include "tests/support/take.hpp"
#include "tests/unit/cuda_fixture.hpp"

namespace linkspan::copy {
namespace {

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
  /// In the results, for who compares them with those that are built in.
  static void tell(const std::string& link, const Rates& r) {
    const auto line = [](double start, double piece, double bytes) {
      return std::to_string(start) + " us + " + std::to_string(piece) + " us a piece, " +
             std::to_string(bytes / 1e3) + " GB/s";
    };
    RecordProperty(link + ".copy_engine", line(r.engine_us, r.engine_us_a_piece, r.engine_bytes));
    RecordProperty(link + ".sm_kernel", line(r.kernel_us, r.kernel_us_a_piece, r.kernel_bytes));
  }
  const Rates* rates_to(const std::string& other) {
    return calibration->rates_to(other, memory->address(), memory->bytes());
  }
  /// A model that this process does not know yet, whose tests may be repeated.
  static std::string model() {
    static int models = 0;
    return "model " + std::to_string(++models);
  }

  std::unique_ptr<Calibration> calibration;
  std::optional<cuda::DeviceBuffer> memory;
};

TEST_F(CalibrationOnDevice, MeasuresEachLinkOnceInAProcess) {
  const auto another = take(Calibration::create(*device, 4, kPlenty));
  const auto sound = [](const Rates* rates) {
    ASSERT_NE(rates, nullptr);
    for (const double bytes : {rates->engine_bytes, rates->kernel_bytes}) {
      EXPECT_GT(bytes, 1);
      EXPECT_LT(bytes, 1e7);
    }
    for (const double us : {rates->engine_us + rates->engine_us_a_piece,
                            rates->kernel_us + rates->kernel_us_a_piece}) {
      EXPECT_GT(us, 0);
      EXPECT_LT(us, 1e4);
    }
  };
  for (const Link link : {Link::host, Link::same_gpu}) {
    const Rates* rates = calibration->rates(link);
    sound(rates);
    tell(link == Link::host ? "host" : "same_gpu", *rates);
    EXPECT_EQ(another->rates(link), rates);
  }
  const std::string one = model();
  const Rates* rates = rates_to(one);
  sound(rates);
  EXPECT_EQ(another->rates_to(one, 0, 0), rates) << "known: nothing is touched";
  EXPECT_NE(rates_to(model()), rates);
}

TEST_F(CalibrationOnDevice, TooLittleMemoryTellsNothing) {
  const std::string one = model();
  EXPECT_EQ(calibration->rates_to(one, memory->address(), Calibration::kLeast - 1), nullptr);
  EXPECT_NE(calibration->rates_to(one, memory->address(), Calibration::kLeast), nullptr);
}

TEST_F(CalibrationOnDevice, NobodyWaitsForAGpuThatStandsStill) {
  const test::FakeCuda fake = test::FakeCuda::find();
  if (!fake) GTEST_SKIP() << "needs the simulated driver";
  calibration = take(Calibration::create(*device, 4));
  test::FakeCudaHold held(fake, device->info().ordinal);
  const std::string one = model();
  const auto begin = base::Clock::steady().now();
  EXPECT_EQ(rates_to(one), nullptr);
  EXPECT_LT(base::Clock::steady().now() - begin, seconds(2));
  EXPECT_EQ(rates_to(one), nullptr) << "what was begun is under way";
  held.release();
  const auto limit = base::Deadline::after(base::Clock::steady(), kPlenty);
  const Rates* rates = nullptr;
  while (rates == nullptr && !limit.passed()) rates = rates_to(one);
  EXPECT_NE(rates, nullptr);
}

}  // namespace
}  // namespace linkspan::copy
