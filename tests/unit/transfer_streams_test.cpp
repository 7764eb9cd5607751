// Tests the user's streams of one transfer: when it may begin, what its end releases, and that it
// keeps nothing afterwards.
#include "engine/transfers/stream_order.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/take.hpp"
#include "tests/unit/cuda_fixture.hpp"

namespace linkspan::engine {
namespace transfer_streams_test {

using namespace std::chrono_literals;
using test::take, test::must;

class TransferStreamsOnDevice : public cuda::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (device == nullptr) return;
    after_.emplace(take(cuda::Stream::create(*scope)));
    behind_.emplace(take(cuda::Stream::create(*scope)));
    orders_ = std::make_unique<StreamOrders>(topology.get());
  }
  StreamOrder order(const cuda::Stream& stream) const {
    return {.kind = StreamOrder::Kind::created, .gpu = device->info().uuid, .handle = stream.get()};
  }
  /// Returns the streams of a transfer after `after_` that releases `behind_`.
  ResolvedStreams resolve() {
    auto resolved = take(orders_->resolve(order(*after_), order(*behind_), {}));
    resolved.scope.reset();  // scopes end in the reverse order of entry
    return resolved;
  }
  /// Blocks a stream until the result is opened.
  std::shared_ptr<StreamBlocker> block(const cuda::Stream& stream) {
    auto resolved = take(orders_->resolve({}, order(stream), {}));
    must(resolved.blocker->arm(resolved.release));
    return resolved.blocker;
  }
  bool stands_still(const cuda::Stream& stream) {
    return stream.query(*scope).code() == Code::pending;
  }
  bool goes_on(const cuda::Stream& stream) {
    const auto limit = base::Deadline::in(10s);
    while (stands_still(stream) && !limit.passed()) std::this_thread::yield();
    return !stands_still(stream);
  }
  /// Returns how many events the pool of the GPU has.
  std::size_t idle_events() const {
    std::vector<cuda::PooledEvent> all;
    for (auto event = device->events().acquire(); event.ok(); event = device->events().acquire())
      all.push_back(*std::move(event));
    return all.size();
  }
  cuda::PooledEvent event() const { return take(device->events().acquire()); }

  std::optional<cuda::Stream> after_, behind_;
  std::unique_ptr<StreamOrders> orders_;
};

TEST_F(TransferStreamsOnDevice, AdoptsWhatATransferNeeds) {
  auto resolved = resolve();
  TransferStreams streams;
  EXPECT_EQ(streams.after.device, nullptr);
  streams.adopt(resolved);
  EXPECT_EQ(streams.after.device, device);
  EXPECT_EQ(streams.after.handle, after_->get());
  EXPECT_TRUE(streams.mark.has_value());
  EXPECT_TRUE(streams.wants_release) << "a batch may record its event";
  EXPECT_EQ(streams.blocker, nullptr) << "it is the submission's";
  EXPECT_NE(resolved.blocker, nullptr);

  auto alone = take(orders_->resolve(order(*after_), {}, {}));
  alone.scope.reset();
  TransferStreams only_after;
  only_after.adopt(alone);
  EXPECT_FALSE(only_after.wants_release);
}

TEST_F(TransferStreamsOnDevice, HasPassed_WhenTheStreamHasReachedTheMark) {
  const auto blocks = block(*after_);
  auto resolved = resolve();
  TransferStreams streams;
  EXPECT_TRUE(take(streams.passed())) << "no stream was named";
  streams.adopt(resolved);
  EXPECT_FALSE(take(streams.passed()));
  blocks->open();
  const auto limit = base::Deadline::in(10s);
  while (!take(streams.passed()) && !limit.passed()) std::this_thread::yield();
  EXPECT_TRUE(take(streams.passed()));
}

TEST_F(TransferStreamsOnDevice, ReleasesByTheEvent_WhenABatchHasRecordedOne) {
  auto resolved = resolve();
  TransferStreams streams;
  streams.adopt(resolved);
  streams.release_event.emplace(event());
  const auto handle = (*streams.release_event)->get();
  const StreamRelease release = streams.release(resolved.blocker, false);
  ASSERT_TRUE(release.event.has_value());
  EXPECT_EQ((*release.event)->get(), handle);
  EXPECT_FALSE(release.blocks);
  EXPECT_EQ(streams.blocker, nullptr) << "nothing has to be opened";
  EXPECT_FALSE(streams.wants_release) << "a later event would be too late";
}

TEST_F(TransferStreamsOnDevice, ReleasesByTheBlocker_WhenNoBatchHasRecordedAnEvent) {
  auto resolved = resolve();
  TransferStreams streams;
  streams.adopt(resolved);
  must(resolved.blocker->arm(resolved.release));
  const StreamRelease release = streams.release(resolved.blocker, false);
  EXPECT_FALSE(release.event.has_value());
  EXPECT_TRUE(release.blocks);
  EXPECT_EQ(streams.blocker, resolved.blocker);
  EXPECT_FALSE(streams.wants_release);
  resolved.blocker.reset();
  EXPECT_TRUE(stands_still(*behind_)) << "the transfer has not ended";
  streams.end();
  EXPECT_TRUE(goes_on(*behind_));
  EXPECT_EQ(streams.blocker, nullptr);
}

TEST_F(TransferStreamsOnDevice, BlocksNothing_WhenTheTransferIsQuiet) {
  auto resolved = resolve();
  TransferStreams streams;
  streams.adopt(resolved);
  const StreamRelease release = streams.release(resolved.blocker, true);
  EXPECT_FALSE(release.event.has_value());
  EXPECT_FALSE(release.blocks);
  EXPECT_EQ(streams.blocker, nullptr);
}

/// Else a close would wait, and later transfers would find no event.
TEST_F(TransferStreamsOnDevice, KeepsNoEvent_WhenItHasEnded) {
  const std::size_t before = idle_events();
  auto resolved = resolve();
  TransferStreams streams;
  streams.adopt(resolved);
  EXPECT_EQ(idle_events(), before - 1);
  streams.end();
  EXPECT_FALSE(streams.mark.has_value());
  EXPECT_EQ(idle_events(), before);
  streams.end();  // has nothing more to release
}

}  // namespace transfer_streams_test
}  // namespace linkspan::engine
