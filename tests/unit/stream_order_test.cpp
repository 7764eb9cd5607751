#include "engine/transfers/stream_order.hpp"

#include <gtest/gtest.h>

#include "tests/unit/cuda_fixture.hpp"

namespace linkspan::engine {
namespace stream_order_test {

class StreamOrdersOnDevice : public cuda::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (device == nullptr) return;
    auto made = cuda::Stream::create(*scope);
    ASSERT_TRUE(made.ok());
    stream.emplace(*std::move(made));
    orders = std::make_unique<StreamOrders>(topology.get());
  }
  /// Returns the dependencies of a transfer that a CPU makes; its end releases `stream`.
  Result<ResolvedStreams> place() {
    const StreamOrder order{
        .kind = StreamOrder::Kind::created, .gpu = device->info().uuid, .handle = stream->get()};
    return orders->resolve({}, order, {});
  }
  bool stands_still() { return stream->query(*scope).code() == Code::pending; }
  bool goes_on() {
    const auto limit = base::Deadline::after(base::Clock::steady(), std::chrono::seconds(10));
    while (stands_still() && !limit.passed()) {
    }
    return !stands_still();
  }

  std::optional<cuda::Stream> stream;
  std::unique_ptr<StreamOrders> orders;
};

TEST_F(StreamOrdersOnDevice, AGateHoldsUntilItIsOpened) {
  auto placed = place();
  ASSERT_TRUE(placed.ok()) << placed.status().to_string();
  ASSERT_TRUE(placed->blocker->arm(placed->release).ok());
  EXPECT_TRUE(stands_still());
  placed->blocker->open();
  EXPECT_TRUE(goes_on());
}

/// The transfer may end while its StreamBlocker is armed, and a closing that begins then waits for
/// the StreamBlocker's stream.
TEST_F(StreamOrdersOnDevice, AGateThatWasOpenedBeforeHoldsNothing) {
  auto placed = place();
  ASSERT_TRUE(placed.ok()) << placed.status().to_string();
  placed->blocker->open();
  ASSERT_TRUE(placed->blocker->arm(placed->release).ok());
  EXPECT_TRUE(goes_on());
}

}  // namespace stream_order_test
}  // namespace linkspan::engine
