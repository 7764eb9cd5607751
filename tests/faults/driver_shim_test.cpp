// Tests the shim itself: an order changes that call and no other, and the balance is exact.
#include "tests/support/driver_shim/control.hpp"

#include <gtest/gtest.h>

#include "cuda/event.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "tests/support/kinds.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {
namespace driver_shim_test {

using cuda::DeviceBuffer, cuda::DeviceScope, cuda::Event, cuda::PinnedBuffer, cuda::Stream;

class DriverShimOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!shim_) GTEST_SKIP() << DriverShim::kNeeded;
    if (const Status status = need_gpus(2); !status.ok()) GTEST_SKIP() << status.to_string();
    for (std::size_t i = 0; i < 2; ++i)
      devices_.push_back(take(topology()->activate(topology()->devices()[i].uuid)));
    before_ = shim_.balance();
  }
  void TearDown() override {
    if (!shim_ || devices_.empty()) return;  // skipped
    shim_.order("clear");
    EXPECT_EQ(difference(before_, shim_.balance()), "");
  }
  DeviceScope enter(std::size_t device = 0) const { return take(devices_[device]->enter()); }
  std::string held() const { return difference(before_, shim_.balance()); }

  const DriverShim shim_ = DriverShim::find();
  std::vector<const cuda::Device*> devices_;
  DriverBalance before_;
};

TEST_F(DriverShimOnDevice, FailsTheCallThatIsMeantOnce) {
  const DeviceScope scope = enter();
  shim_.order("fail cuEventCreate 2 999");
  const auto first = Event::create(scope), second = Event::create(scope),
             third = Event::create(scope);
  EXPECT_TRUE(first.ok() && third.ok());
  EXPECT_EQ(second.status().code(), Code::cuda);
  EXPECT_NE(second.status().what().find("999"), std::string::npos);
  EXPECT_EQ(shim_.struck(), "cuEventCreate");
  EXPECT_EQ(held(), "contexts pushed +1, events +2");
}

TEST_F(DriverShimOnDevice, CountsTheCallsOfAllEntries) {
  const DeviceScope scope = enter();
  shim_.order("trace,fail * 2 2");
  Stream stream = take(Stream::create(scope));
  EXPECT_EQ(stream.synchronize(scope).code(), Code::cuda);
  EXPECT_EQ(stream.synchronize(scope).to_string(), "ok");
  const std::vector<std::string> calls = {"cuStreamCreateWithPriority", "cuStreamSynchronize",
                                          "cuStreamSynchronize"};
  EXPECT_EQ(shim_.traced(), calls);
}

TEST_F(DriverShimOnDevice, LosesOneContextForGood) {
  Stream here = take(Stream::create(enter(0))), there = take(Stream::create(enter(1)));
  shim_.order("lose cuStreamSynchronize 1 719");
  const Status lost = here.synchronize(enter(0));
  EXPECT_NE(lost.what().find("719"), std::string::npos);
  EXPECT_EQ(lost.scope(), Scope::process);
  EXPECT_EQ(here.query(enter(0)).scope(), Scope::process);
  EXPECT_EQ(Event::create(enter(0)).status().scope(), Scope::process);
  EXPECT_EQ(there.synchronize(enter(1)).to_string(), "ok");
  EXPECT_EQ(shim_.struck(), "cuStreamSynchronize");
}

TEST_F(DriverShimOnDevice, HoldsUpCalls) {
  const base::Clock& clock = base::Clock::steady();
  Stream stream = take(Stream::create(enter()));
  shim_.order("delay cuStreamQuery 20000,stall cuStreamSynchronize 2 30000");
  const auto time = [&](const auto& call) {
    const base::Time begin = clock.now();
    EXPECT_EQ(call().to_string(), "ok");
    return clock.now() - begin;
  };
  EXPECT_GE(time([&] { return stream.query(enter()); }), 20ms);
  EXPECT_GE(time([&] { return stream.query(enter()); }), 20ms);
  time([&] { return stream.synchronize(enter()); });
  EXPECT_GE(time([&] { return stream.synchronize(enter()); }), 30ms);
}

TEST_F(DriverShimOnDevice, RemembersForbiddenCalls) {
  shim_.order("forbid cuMemAlloc,forbid cuMemHostAlloc");
  EXPECT_EQ(shim_.forbidden(), "");
  take(DeviceBuffer::create(enter(), 4096));
  EXPECT_EQ(shim_.forbidden(), "cuMemAlloc");
}

TEST_F(DriverShimOnDevice, LeavesTheTestsOwnCallsAlone) {
  const DriverShim::Own own(shim_);
  shim_.order("fail * 1 999,forbid cuMemAlloc");
  const auto memory = DeviceBuffer::create(enter(), 4096);
  EXPECT_TRUE(memory.ok());
  EXPECT_EQ(shim_.forbidden() + shim_.struck() + held(), "");
}

TEST_F(DriverShimOnDevice, CountsWhatIsMadeAndNotGivenBack) {
  {
    const auto pinned = take(PinnedBuffer::create(enter(), 4096));
    const auto memory = take(DeviceBuffer::create(enter(), 4096));
    std::vector<std::byte> host(8192);
    const auto registered = take(cuda::HostRegistration::create(enter(), host.data(), 8192));
    EXPECT_EQ(held(), "device allocations +1, host allocations +1, host registrations +1");
    EXPECT_FALSE(DeviceBuffer::create(enter(), ~std::size_t{0} >> 1).ok());  // failed: made nothing
    EXPECT_EQ(held(), "device allocations +1, host allocations +1, host registrations +1");
  }
  EXPECT_EQ(held(), "");
}

/// The shim counts memory as freed if it was ordered to fail the call that frees it.
TEST_F(DriverShimOnDevice, DoesNotBlameTheCallerOfAnEnderThatItFailed) {
  {
    const auto memory = take(DeviceBuffer::create(enter(), 4096));
    shim_.order("fail cuMemFree 1 999");
  }
  EXPECT_EQ(shim_.struck(), "cuMemFree");
  EXPECT_EQ(held(), "");
}

TEST_F(DriverShimOnDevice, RefusesOrdersThatItDoesNotKnow) {
  for (const char* wrong : {"fail", "fail cuInit", "fail cuInit 0 2", "fail cuInit 1", "lose * x 2",
                            "delay cuInit", "forbid", "break cuInit", "forbid cuInit 1", "clear 1"})
    EXPECT_THROW(shim_.order(wrong), std::invalid_argument) << wrong;
}

}  // namespace driver_shim_test
}  // namespace linkspan::test
